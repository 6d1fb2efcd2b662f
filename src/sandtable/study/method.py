"""One configuration of a study, as its settings name it."""

import re
from types import ModuleType
from typing import Annotated, Any

from pydantic import Field, model_validator

from sandtable.cluster.tables import Rate, Speed, Table, Text, broken
from sandtable.study.words import parse

__all__ = ["Method"]

_AXES = ("sync", "exchange", "compression")


class Method(Table):
    """One configuration: when the workers exchange, with whom, and what goes over the wire; or another kind instead."""

    name: Text = Field(description="what the configuration is called in tables and plots")
    sync: Text = Field(default="BulkSynchronous()", description='when, such as "LocalSGD(period=16)"')
    exchange: Text = Field(default="AllReduce()", description='with whom, such as "Gossip()"')
    compression: Text = Field(default="NoCompression()", description='what, such as "TopK(0.01)"')
    kind: Text | None = Field(
        default=None, description='a way to train without these three, such as "Downpour(n_push=5, n_fetch=5)"'
    )
    learning_rate: Speed | None = Field(default=None, description="a rate of its own in the place of [training]'s")
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = Field(
        default=None, description="a momentum of the optimizer in the place of [training]'s, such as 0"
    )
    warm_up_epochs: Rate | None = Field(default=None, description="epochs of warm-up in the place of [training]'s")

    @model_validator(mode="after")
    def _words_are_readable(self) -> "Method":
        for key in (*_AXES, "kind"):
            if (text := getattr(self, key)) is None:
                continue
            try:
                parse(text)
            except ValueError as error:
                raise broken(key, str(error).removeprefix("must be "), text, "write it as in Python") from None
        return self

    @model_validator(mode="after")
    def _kind_stands_alone(self) -> "Method":
        for key in _AXES:
            if self.kind is not None and (text := getattr(self, key)) != type(self).model_fields[key].default:
                raise broken(key, f"left out where kind is given ({self.kind})", text, "take one of the two away")
        return self

    def axes(self, methods: ModuleType) -> dict[str, Any]:
        """The three axes as objects of the module of methods."""
        return {axis: parse(getattr(self, axis)).build(methods) for axis in _AXES}

    @property
    def words(self) -> str:
        """What it is, in the words of the settings."""
        return self.kind or " · ".join(getattr(self, axis) for axis in _AXES)

    @property
    def file_name(self) -> str:
        """The name with nothing in it that a file system minds."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-") or "run"
