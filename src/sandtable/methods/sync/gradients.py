"""Gradients on their way: buckets that leave while the backward pass still computes.

Gradients are ready roughly in the reverse order of the parameters, so buckets are filled from the last parameter to
the first. A hook on each parameter ticks it off; a full bucket goes on the lane as soon as all before it have gone,
so that the order is the same on every rank. What has not left by the end of the backward pass (parameters that were
not used) leaves in `finish`.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from sandtable.errors import MethodError
from sandtable.methods.buckets import bucket_sizes
from sandtable.methods.compression import Compression
from sandtable.methods.exchange import Cost, Exchange, Line
from sandtable.methods.flat import flatten
from sandtable.methods.sync.sparse import SparseGradients
from sandtable.methods.sync.sync import Setup
from sandtable.methods.wire import Wire

__all__ = ["GradientExchange"]


class GradientExchange:
    """Replaces the gradients of a model by their mean over ranks, or by the gossip mixture."""

    def __init__(self, setup: Setup, exchange: Exchange, wire: Wire, compression: Compression) -> None:
        self.paused = False
        self._lane = setup.lane
        self._exchange = exchange
        self._num_ranks = wire.size
        self._turn = 0
        self._sparse = SparseGradients(setup.sparse_parameters, wire)
        dense = [parameter for parameter in setup.parameters if not _holds(setup.sparse_parameters, parameter)]
        sizes = bucket_sizes(compression, setup.bucket_bytes) if setup.overlap else ()
        self._buckets = flatten(reversed(dense), sizes=sizes, flags=True)
        self._lines = [
            Line.of(bucket, compression, seed=setup.seed + 1000 * number) for number, bucket in enumerate(self._buckets)
        ]
        self._mixers = [exchange.mixer(wire, line) for line in self._lines]
        self._waiting_for: list[set[int]] = []
        self._next_bucket = 0
        self._left: list[tuple[Tensor, Tensor | None, int]] = []
        self._hooks: list[Any] = []
        self._forget()
        if setup.overlap:
            self._watch()

    def finish(self) -> None:
        """Everything is exchanged, and the parameters have the gradients to step with."""
        self._check_unchanged()
        while self._next_bucket < len(self._buckets):
            self._dispatch()
        self._lane.wait()
        for bucket in self._buckets:
            bucket.store_gradients()
        self._lane.run(self._sparse.exchange)
        self._forget()
        self._turn += 1

    def cost(self) -> Cost:
        total = Cost.nothing()
        for line in self._lines:
            total = total + self._exchange.cost(self._num_ranks, line)
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

    def _forget(self) -> None:
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
        """What the training loop does to a gradient that has left reaches nobody, this rank neither."""
        for parameter, gradient, then in self._left:
            if parameter.grad is not gradient or _version(parameter) != then:
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
        self._lane.submit(mixer.start(bucket, turn=turn))


def _version(parameter: Tensor) -> int:
    """How often the gradient has been written to."""
    return -1 if parameter.grad is None else parameter.grad._version


def _holds(parameters: tuple[Tensor, ...], parameter: Tensor) -> bool:
    return any(parameter is each for each in parameters)
