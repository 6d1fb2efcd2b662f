"""Pipeline schedules: in which order a rank runs the forward and backward passes of a step's micro-batches.

1F1B (Narayanan et al. 2021, arXiv:2104.04473, figure 4): after a warm-up of one forward for each later stage, one
forward and one backward in turn, then the backwards that are left. Interleaved: a rank has `num_chunks` stages that lie
pp apart; micro-batches go through them in groups of pp, the warm-up is longer, the bubble `num_chunks` times shorter.
Every pass is followed by one exchange with both neighbours, so that the ranks move in step.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from megatron_exchange import Exchange
from torch import Tensor
from torch.autograd import Variable

__all__ = ["Pipeline"]


class Stage(Protocol):
    """Runs a micro-batch: (activations or None, its number) to activations, or to a loss at the end."""

    def __call__(self, x: Tensor | None, micro_batch: int) -> Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A rank's stages and the schedule that runs them."""

    stages: Sequence[Stage]
    exchange: Exchange
    num_micro: int
    scale_loss: Callable[[Tensor], Tensor]

    def run(self) -> None:
        """All micro-batches, forward and backward."""
        pp = self.exchange.pp
        if pp.size == 1:
            run = _Run(self)
            for _ in range(self.num_micro):
                run.forward(0, None)
                run.backward(0, None)
        elif len(self.stages) == 1:
            self._run_1f1b()
        else:
            self._run_interleaved()

    def _run_1f1b(self) -> None:
        pp, swap, run = self.exchange.pp, self.exchange.swap, _Run(self)
        ahead = min(pp.size - pp.rank - 1, self.num_micro)
        up, down = not pp.is_first, not pp.is_last
        for _ in range(ahead):
            x, _ = swap(from_previous=up)
            out = run.forward(0, x)
            swap(to_next=out)
            run.release(out)
        paired = self.num_micro - ahead
        x = swap(from_previous=up)[0] if paired else None
        for i in range(paired):
            out = run.forward(0, x)
            _, grad = swap(to_next=out if down else None, from_next=down)
            run.release(out if down else None)
            grad = run.backward(0, grad)
            x, _ = swap(to_previous=grad, from_previous=up and i < paired - 1)
        for _ in range(ahead):
            _, grad = swap(from_next=down)
            swap(to_previous=run.backward(0, grad))

    def _run_interleaved(self) -> None:
        """Passes are numbered 0 .. micro-batches x chunks - 1, forward and backward each for itself."""
        pp, swap, run = self.exchange.pp, self.exchange.swap, _Run(self)
        total, last_chunk = self.num_micro * len(self.stages), len(self.stages) - 1
        ahead = min((pp.size - pp.rank - 1) * 2 + last_chunk * pp.size, total)
        if self.num_micro == pp.size:
            ahead = total
        queue = _Queue(self)
        if not pp.is_first:
            queue.put_input(0, swap(from_previous=True)[0])
        for number in range(ahead):
            out = queue.forward(run, number)
            following = self.chunk_of(number + 1)
            wants = number + 1 < total and not (pp.is_first and following == 0)
            wants_grad = number + 1 == ahead < total and not pp.is_last
            x, grad = swap(to_next=out, from_previous=wants, from_next=wants_grad)
            run.release(out)
            queue.put_input(following, x)
            queue.put_grad(0, grad)
        for number in range(total - ahead):
            out, grad = queue.forward(run, number + ahead), queue.backward(run, number)
            following = self._arriving(number + ahead, is_end=pp.is_first)
            following_grad = self._arriving(number, is_end=pp.is_last)
            wants = following <= last_chunk and number + ahead + 1 < total
            x, out_grad = swap(
                to_previous=grad, to_next=out, from_previous=wants, from_next=following_grad <= last_chunk
            )
            run.release(out)
            queue.put_input(following, x)
            queue.put_grad(following_grad, out_grad)
        if ahead == total and not pp.is_last:
            queue.put_grad(0, swap(from_next=True)[1])
        for number in range(total - ahead, total):
            grad = queue.backward(run, number)
            following = self.chunk_of(number + 1)
            wants_grad = number + 1 < total and not (pp.is_last and following == 0)
            queue.put_grad(following, swap(to_previous=grad, from_next=wants_grad)[1])

    def chunk_of(self, number: int) -> int:
        """The chunk that pass `number` runs through, counted from the end where the passes come in."""
        num_ranks, num_chunks = self.exchange.pp.size, len(self.stages)
        return number % (num_ranks * num_chunks) // num_ranks

    def _arriving(self, number: int, *, is_end: bool) -> int:
        """The chunk that what arrives after pass `number` is for.

        At the end of the ring it was sent by the other end, which runs pp - 1 passes behind, one chunk earlier.
        """
        return self.chunk_of(number - (self.exchange.pp.size - 1)) + 1 if is_end else self.chunk_of(number + 1)


class _Run:
    """Passes of one step: what is kept between a micro-batch's forward and its backward."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self._kept: list[deque[tuple[Tensor | None, Tensor]]] = [deque() for _ in pipeline.stages]
        self._num_forward = [0] * len(pipeline.stages)

    def forward(self, chunk: int, x: Tensor | None) -> Tensor:
        """The next micro-batch through a stage."""
        out = self.pipeline.stages[chunk](x, self._num_forward[chunk])
        self._num_forward[chunk] += 1
        if self.pipeline.exchange.pp.is_last and chunk == len(self._kept) - 1:
            out = self.pipeline.scale_loss(out)
        self._kept[chunk].append((x, out))
        return out

    def backward(self, chunk: int, grad: Tensor | None) -> Tensor | None:
        """The oldest micro-batch of a stage; the gradient of its input."""
        x, out = self._kept[chunk].popleft()
        # Not through torch.autograd.backward, which compares shapes: `out` may have been released.
        gradient = torch.ones_like(out) if grad is None else grad
        Variable._execution_engine.run_backward((out,), (gradient,), False, False, (), True, True)
        return None if x is None else x.grad

    def release(self, out: Tensor | None) -> None:
        """Free an activation that was sent: backward needs its place in the graph, not its values."""
        if out is not None:
            out.data = torch.empty(1, dtype=out.dtype, device=out.device)


class _Queue:
    """What arrived for each chunk of the interleaved schedule and was not used yet."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.inputs: list[deque[Tensor]] = [deque() for _ in pipeline.stages]
        self.grads: list[deque[Tensor]] = [deque() for _ in pipeline.stages]

    def put_input(self, chunk: int, x: Tensor | None) -> None:
        """Keep what the previous stage sent, if anything was asked for."""
        if x is not None:
            self.inputs[chunk].append(x)

    def put_grad(self, chunk: int, grad: Tensor | None) -> None:
        """The same for a gradient; chunks are counted from the last."""
        if grad is not None:
            self.grads[chunk].append(grad)

    def forward(self, run: _Run, number: int) -> Tensor | None:
        """Forward pass `number`; what is to be sent on, if anything."""
        pp, chunk = self.pipeline.exchange.pp, self.pipeline.chunk_of(number)
        out = run.forward(chunk, None if pp.is_first and chunk == 0 else self.inputs[chunk].popleft())
        return None if pp.is_last and chunk == len(self.inputs) - 1 else out

    def backward(self, run: _Run, number: int) -> Tensor | None:
        """Backward pass `number`; what is to be sent back, if anything."""
        pp, chunk = self.pipeline.exchange.pp, self.pipeline.chunk_of(number)
        grad = None if pp.is_last and chunk == 0 else self.grads[chunk].popleft()
        return run.backward(len(self.grads) - 1 - chunk, grad)
