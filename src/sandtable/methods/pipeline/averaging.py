"""Averaging among replicas: the ranks that hold the same stage make every update together.

In each round every replica brings its gradient, all get the mean, and their optimizers make the same step. As soon as
the backward pass has filled a bucket it leaves, while the pass goes on; a round may be settled later, when others have
come as far, while gradients of the next one are already collected. With a `data_group` there are several pipelines,
each on data of its own, and the mean is over those as well.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from sandtable.methods.buckets import bucket_sizes
from sandtable.methods.compression import NoCompression
from sandtable.methods.flat import Vector, flatten
from sandtable.methods.pipeline.links import Links
from sandtable.methods.pipeline.porter import Porter
from sandtable.units import MIB

__all__ = ["Averaging"]

_BUCKET_BYTES = 25 * MIB


class _Round:
    """Gradients of one update on their way: in buckets, or as they are where there is nobody to share them with."""

    def __init__(self, parameters: Sequence[nn.Parameter], *, is_shared: bool) -> None:
        self.parameters = parameters
        sizes = bucket_sizes(NoCompression(), _BUCKET_BYTES)
        self.buckets = flatten(reversed(parameters), sizes=sizes, flags=True) if is_shared else []
        self.bucket_of = {id(each): number for number, bucket in enumerate(self.buckets) for each in bucket.parameters}
        self.clear()

    def clear(self) -> None:
        self.minibatches = 1.0
        self.missing = [len(bucket.parameters) for bucket in self.buckets]
        self.futures: list[Future[None]] = []
        self.gradients: list[Tensor | None] = []

    @property
    def has_left(self) -> bool:
        return len(self.futures) == len(self.buckets)

    def divide(self, divisor: float) -> None:
        """Put the mean where the gradients are."""
        for parameter, gradient in zip(self.parameters, self.gradients, strict=False):
            parameter.grad = gradient if gradient is None or divisor == 1 else gradient.div_(divisor)
        for bucket in self.buckets:
            if divisor != 1:
                bucket.data.div_(divisor)
            bucket.store_gradients()


class Averaging:
    """The gradients of some parameters, added up over the replicas of a stage and over other pipelines."""

    def __init__(self, parameters: Sequence[nn.Parameter], links: Links, *, device: torch.device) -> None:
        self._parameters = list(parameters)
        self._num_pipelines = 1 if links.pipelines is None else links.pipelines.size
        self._wires = [wire for wire in links.sharing if wire.size > 1]
        self._watch = links.watch
        self._others = links.other_replicas
        self._porter = Porter(device)
        self._is_last_pass = False
        self._pending: deque[_Round] = deque()
        self._spare: list[_Round] = []
        self._open = self._new_round()

    @property
    def num_pending(self) -> int:
        """Rounds that have ended and are not settled."""
        return len(self._pending)

    def begin_last_pass(self) -> None:
        """The backward pass that begins now completes the gradients of this round."""
        self._is_last_pass = bool(self._wires)

    def tick(self, index: int) -> None:
        """The gradient of that parameter is in place; full buckets leave, in their order."""
        if not self._is_last_pass:
            return
        now = self._open
        now.missing[now.bucket_of[id(self._parameters[index])]] -= 1
        while not now.has_left and now.missing[len(now.futures)] == 0:
            self._dispatch()

    def end_round(self, *, minibatches: float) -> None:
        """The gradients there are make a round, of so many minibatches of all replicas together, and are taken away."""
        now = self._open
        now.minibatches = minibatches
        while not now.has_left:
            self._dispatch()
        now.gradients = [] if now.buckets else [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        self._is_last_pass = False
        self._pending.append(now)
        self._open = self._new_round()

    @contextmanager
    def settled(self) -> Iterator[None]:
        """In here the parameters have the mean of the oldest round as gradients; none where nobody has one."""
        done = self._pending.popleft()
        for future in done.futures:
            self._watch.wait(future, what="the gradients of the other replicas", suspects=self._others)
        later = [parameter.grad for parameter in self._parameters]
        done.divide(done.minibatches * self._num_pipelines)
        yield
        for parameter, gradient in zip(self._parameters, later, strict=True):
            parameter.grad = gradient
        done.clear()
        self._spare.append(done)

    def close(self) -> None:
        self._porter.close()

    def _new_round(self) -> _Round:
        return self._spare.pop() if self._spare else _Round(self._parameters, is_shared=bool(self._wires))

    def _dispatch(self) -> None:
        bucket = self._open.buckets[len(self._open.futures)]
        bucket.load_gradients()
        self._open.futures.append(self._porter.submit(partial(self._add_up, bucket)))

    def _add_up(self, bucket: Vector) -> None:
        for wire in self._wires:
            wire.all_reduce(bucket.whole)
            wire.counters.durations_s.clear()
