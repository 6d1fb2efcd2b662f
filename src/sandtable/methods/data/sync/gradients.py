"""Gradient exchange: buckets that leave while the backward pass still computes.

Gradients are ready roughly in the reverse order of the parameters, so buckets are filled from the last parameter to
the first. A hook on each parameter ticks it off; a full bucket is submitted as soon as all before it have left, so that
the order is the same on every rank. Whatever has not left by the end of the backward pass (unused parameters) leaves in
`finish`.
"""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from sandtable.errors import MethodError
from sandtable.methods.data.compression.compression import Compression
from sandtable.methods.data.exchange.exchange import Exchange, ExchangeCost, VectorSpec
from sandtable.methods.data.sync.sparse import SparseGradients
from sandtable.methods.data.sync.sync import SyncSetup
from sandtable.methods.transport.buckets import bucket_sizes
from sandtable.methods.transport.vectors import flatten
from sandtable.methods.transport.wire import Wire

__all__ = ["GradientExchange", "compressed_bucket_sizes"]

_SAMPLE_ELEMENTS = 1 << 20


class GradientExchange:
    """Replaces the gradients of a model with their mean over ranks, or with the gossip mixture."""

    def __init__(self, setup: SyncSetup, exchange: Exchange, wire: Wire, compression: Compression) -> None:
        self.paused = False
        self._queue = setup.queue
        self._exchange = exchange
        self._num_ranks = wire.size
        self._turn = 0
        self._sparse = SparseGradients(setup.sparse_parameters, wire)
        dense = [parameter for parameter in setup.parameters if not _holds(setup.sparse_parameters, parameter)]
        sizes = compressed_bucket_sizes(compression, setup.bucket_bytes) if setup.overlap else ()
        self._buckets = flatten(reversed(dense), sizes=sizes, flags=True)
        self._specs = [
            VectorSpec.of(bucket, compression, seed=setup.seed + 1000 * number)
            for number, bucket in enumerate(self._buckets)
        ]
        self._mixers = [exchange.mixer(wire, spec) for spec in self._specs]
        self._waiting_for: list[set[int]] = []
        self._next_bucket = 0
        self._left: list[tuple[Tensor, Tensor | None, int]] = []
        self._hooks: list[Any] = []
        self._reset()
        if setup.overlap:
            self._watch()

    def finish(self) -> None:
        """Wait until everything is exchanged, and give the parameters the gradients to step with."""
        self._check_unchanged()
        while self._next_bucket < len(self._buckets):
            self._dispatch()
        self._queue.wait()
        for bucket in self._buckets:
            bucket.store_gradients()
        self._queue.run(self._sparse.exchange)
        self._reset()
        self._turn += 1

    def cost(self) -> ExchangeCost:
        total = ExchangeCost.nothing()
        for spec in self._specs:
            total = total + self._exchange.cost(self._num_ranks, spec)
        return total

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def state_dict(self) -> dict[str, Any]:
        return {"turn": self._turn, "mixers": [mixer.state_dict() for mixer in self._mixers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._turn = state["turn"]
        for mixer, mixer_state in zip(self._mixers, state["mixers"], strict=True):
            mixer.load_state_dict(mixer_state)

    def _reset(self) -> None:
        self._waiting_for = [set(range(len(bucket.parameters))) for bucket in self._buckets]
        self._next_bucket = 0
        self._left = []

    def _watch(self) -> None:
        for number, bucket in enumerate(self._buckets):
            for index, parameter in enumerate(bucket.parameters):
                register: Any = parameter.register_post_accumulate_grad_hook
                self._hooks.append(register(self._tick(number, index)))

    def _tick(self, number: int, index: int) -> Callable[[Tensor], None]:
        def tick(parameter: Tensor) -> None:
            if self.paused:
                return
            if number < self._next_bucket:
                raise MethodError(
                    "a gradient must not change after it has left, but a parameter got a second one before step(); "
                    "put every backward pass but the last in no_sync(), or give overlap=False"
                )
            self._waiting_for[number].discard(index)
            while self._next_bucket < len(self._buckets) and not self._waiting_for[self._next_bucket]:
                leaving = self._buckets[self._next_bucket].parameters
                self._left += [(parameter, parameter.grad, _version(parameter)) for parameter in leaving]
                self._dispatch()

        return tick

    def _check_unchanged(self) -> None:
        """Refuse a change to a gradient that has left: it would reach no rank, not even this one."""
        for parameter, gradient, version in self._left:
            if parameter.grad is not gradient or _version(parameter) != version:
                raise MethodError(
                    "a gradient must not change after it has left, but one was changed between the backward pass and "
                    "step(); to clip the mean, give the optimizer a hook (register_step_pre_hook), and to clip each "
                    "rank's own, give overlap=False"
                )

    def _dispatch(self) -> None:
        number, turn = self._next_bucket, self._turn
        bucket, mixer = self._buckets[number], self._mixers[number]
        self._next_bucket += 1
        bucket.load_gradients()
        self._queue.submit(mixer.start(bucket, turn=turn))


def _version(parameter: Tensor) -> int:
    """Return how often the gradient has been written to."""
    return -1 if parameter.grad is None else parameter.grad._version


def _holds(parameters: tuple[Tensor, ...], parameter: Tensor) -> bool:
    return any(parameter is member for member in parameters)


def compressed_bucket_sizes(compression: Compression, bucket_bytes: int) -> Iterable[float]:
    """Return the bytes of gradients that fill a bucket of `bucket_bytes` as sent: the first, then all others.

    Factors (PowerSGD) are made of one bucket alone, since they are small whatever it holds.
    """
    if hasattr(compression, "reducer"):
        return itertools.repeat(float(bucket_bytes))
    sent_share = compression.message_bytes(_SAMPLE_ELEMENTS, torch.float32) / (4 * _SAMPLE_ELEMENTS)
    return bucket_sizes(bucket_bytes, sent_share=sent_share)
