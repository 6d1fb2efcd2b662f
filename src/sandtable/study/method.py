"""One configuration of a study, as its settings give it, and the ten configurations a study has by default."""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import Field, model_validator

from sandtable.study.expressions import parse_call
from sandtable.toml_tables import Rate, Speed, Text, TomlTable, broken_rule

__all__ = ["Method", "default_methods"]

_AXES = ("sync", "exchange", "compression")

_LOCAL_RATE = 0.1
"""In local steps a worker follows only its own images, and tolerates less than the rate of the joint batch."""

_THRESHOLD = "Threshold(share=0.5, values='float16')"
"""Half of the components at half of their bits. With fewer, gossip mixes too little: see docs/results."""


class Method(TomlTable):
    """One configuration: when workers exchange, with whom, and what they send; or another kind of training instead."""

    name: Text = Field(description="what the configuration is called in tables and plots")
    sync: Text = Field(default="BulkSynchronous()", description='when, such as "LocalSGD(period=16)"')
    exchange: Text = Field(default="AllReduce()", description='with whom, such as "Gossip()"')
    compression: Text = Field(default="NoCompression()", description='what, such as "TopK(0.01)"')
    kind: Text | None = Field(
        default=None, description='a kind of training without these three, such as "Downpour(n_push=5, n_fetch=5)"'
    )
    learning_rate: Speed | None = Field(default=None, description="this method's rate, instead of [training]'s")
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = Field(
        default=None, description="this method's momentum of the optimizer, instead of [training]'s, such as 0"
    )
    warm_up_epochs: Rate | None = Field(default=None, description="this method's warm-up, instead of [training]'s")

    @model_validator(mode="after")
    def _expressions_parse(self) -> "Method":
        for key in (*_AXES, "kind"):
            if (text := getattr(self, key)) is None:
                continue
            try:
                parse_call(text)
            except ValueError as error:
                raise broken_rule(key, str(error).removeprefix("must be "), text, "write it as in Python") from None
        return self

    @model_validator(mode="after")
    def _kind_stands_alone(self) -> "Method":
        for key in _AXES:
            if self.kind is not None and (text := getattr(self, key)) != type(self).model_fields[key].default:
                raise broken_rule(key, f"left out where kind is given ({self.kind})", text, "remove one of the two")
        return self

    def axes(self, classes: Mapping[str, Callable[..., Any]]) -> dict[str, object]:
        """Build sync, exchange and compression from these classes."""
        return {axis: parse_call(getattr(self, axis)).build(classes) for axis in _AXES}

    @property
    def expression(self) -> str:
        """The method as the settings write it."""
        return self.kind or " · ".join(getattr(self, axis) for axis in _AXES)

    @property
    def file_name(self) -> str:
        """The name, reduced to characters that every file system accepts."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-") or "run"


def default_methods() -> list[Method]:
    """Return LocalSGD(1, 4, 16) × {all-reduce, gossip, gossip + threshold} and LocalSGD(32) with all-reduce.

    The first, LocalSGD(1) over all-reduce, is the baseline: bulk-synchronous SGD. The mean of weights after a step
    equals a step by the mean of gradients, with momentum too, since both are linear. Written as `BulkSynchronous()`, it
    may overlap communication with the backward pass, as every baseline does. Gossip after local steps mixes weights,
    also with period 1; `BulkSynchronous()` with `Gossip()` would mix gradients.
    """
    methods = []
    for period in (1, 4, 16):
        sync = f"LocalSGD(period={period})"
        all_reduce, all_reduce_rate = ("BulkSynchronous()", None) if period == 1 else (sync, _LOCAL_RATE)
        methods += [
            Method(name=f"LocalSGD({period}), all-reduce", sync=all_reduce, learning_rate=all_reduce_rate),
            Method(name=f"LocalSGD({period}), gossip", sync=sync, exchange="Gossip()", learning_rate=_LOCAL_RATE),
            Method(
                name=f"LocalSGD({period}), gossip + threshold",
                sync=sync,
                exchange="Gossip()",
                compression=_THRESHOLD,
                learning_rate=_LOCAL_RATE,
            ),
        ]
    last = Method(name="LocalSGD(32), all-reduce", sync="LocalSGD(period=32)", learning_rate=_LOCAL_RATE)
    return [*methods, last]
