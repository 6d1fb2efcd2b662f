"""Averaging among replicas: the ranks that hold the same stage make every update together.

In each round every replica contributes its gradient, all get the mean, and their optimizers make the same step. A
bucket is sent as soon as the backward pass has filled it, while the pass continues. A round may be settled later, when
the others have come as far, while gradients of the next round already accumulate. With a `data_group` there are several
pipelines, each on its own data, and the mean is over those as well.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from sandtable.methods.pipeline.links import Links
from sandtable.methods.pipeline.task_thread import TaskThread
from sandtable.methods.transport.buckets import bucket_sizes
from sandtable.methods.transport.vectors import Vector, flatten
from sandtable.units import MIB

__all__ = ["Averaging"]

_BUCKET_BYTES = 25 * MIB


class _Round:
    """Gradients of one update: in buckets, or unchanged where no other replica shares them."""

    def __init__(self, parameters: Sequence[nn.Parameter], *, is_shared: bool) -> None:
        self.parameters = parameters
        sizes = bucket_sizes(_BUCKET_BYTES)
        self.buckets = flatten(reversed(parameters), sizes=sizes, flags=True) if is_shared else []
        self.bucket_of = {
            id(parameter): number for number, bucket in enumerate(self.buckets) for parameter in bucket.parameters
        }
        self.clear()

    def clear(self) -> None:
        self.minibatches = 1.0
        self.missing = [len(bucket.parameters) for bucket in self.buckets]
        self.futures: list[Future[None]] = []
        self.gradients: list[Tensor | None] = []

    @property
    def is_sent(self) -> bool:
        return len(self.futures) == len(self.buckets)

    def divide(self, divisor: float) -> None:
        """Write the mean to the parameters' gradients."""
        for parameter, gradient in zip(self.parameters, self.gradients, strict=False):
            parameter.grad = gradient if gradient is None or divisor == 1 else gradient.div_(divisor)
        for bucket in self.buckets:
            if divisor != 1:
                bucket.data.div_(divisor)
            bucket.store_gradients()


class Averaging:
    """Averages the gradients of some parameters over the replicas of a stage and over other pipelines."""

    def __init__(self, parameters: Sequence[nn.Parameter], links: Links, *, device: torch.device) -> None:
        self._parameters = list(parameters)
        self._num_pipelines = 1 if links.pipelines is None else links.pipelines.size
        self._wires = [wire for wire in links.sharing if wire.size > 1]
        self._watch = links.watch
        self._others = links.other_replicas
        self._thread = TaskThread(device)
        self._is_last_pass = False
        self._pending: deque[_Round] = deque()
        self._spare: list[_Round] = []
        self._open = self._new_round()

    @property
    def num_pending(self) -> int:
        """Rounds that have ended but are not settled."""
        return len(self._pending)

    def begin_last_pass(self) -> None:
        """Note that the backward pass about to begin completes the gradients of this round."""
        self._is_last_pass = bool(self._wires)

    def note_gradient(self, index: int) -> None:
        """Note that the gradient of the parameter `index` is in place, and send full buckets, in order."""
        if not self._is_last_pass:
            return
        now = self._open
        now.missing[now.bucket_of[id(self._parameters[index])]] -= 1
        while not now.is_sent and now.missing[len(now.futures)] == 0:
            self._dispatch()

    def end_round(self, *, minibatches: float) -> None:
        """Close the round with the gradients accumulated so far, of `minibatches` over all replicas, and clear them."""
        now = self._open
        now.minibatches = minibatches
        while not now.is_sent:
            self._dispatch()
        now.gradients = [] if now.buckets else [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        self._is_last_pass = False
        self._pending.append(now)
        self._open = self._new_round()

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Set the parameters' gradients to the mean of the oldest round, in the block, or None if no rank has one."""
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
        self._thread.close()

    def _new_round(self) -> _Round:
        return self._spare.pop() if self._spare else _Round(self._parameters, is_shared=bool(self._wires))

    def _dispatch(self) -> None:
        bucket = self._open.buckets[len(self._open.futures)]
        bucket.load_gradients()
        self._open.futures.append(self._thread.submit(partial(self._add_up, bucket)))

    def _add_up(self, bucket: Vector) -> None:
        for wire in self._wires:
            wire.all_reduce(bucket.whole)
            wire.counters.durations_s.clear()
