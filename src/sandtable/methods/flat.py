"""Flat vectors: the parameters of a model, or their gradients, laid end to end like books on a shelf.

Networks like few large messages, models have many small tensors. A `Vector` is a run of parameters of one dtype on one
device as one 1-D tensor, with a view shaped like each of them. `flatten` cuts a model into as few as possible, or into
buckets of a given size.

A vector of gradients ends in one number a parameter, 1 where this rank has a gradient and 0 where it has none: summed
with the rest, it tells every rank which parameters nobody used, for a few bytes and no message of its own.
"""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

__all__ = ["Vector", "flatten"]


def flatten(parameters: Iterable[Tensor], *, sizes: Iterable[float] = (), flags: bool = False) -> "list[Vector]":
    """Vectors that hold all the parameters, in their order; one a dtype and device, or several.

    `sizes` are in bytes: the first vector is full with the parameter that brings it to the first size or above, the
    next with the second, and so on; when they run out, a vector is never full.
    """
    left = iter(sizes)
    open_runs: dict[tuple[torch.dtype, torch.device], tuple[list[Tensor], float]] = {}
    runs: list[list[Tensor]] = []
    for parameter in parameters:
        kind = (parameter.dtype, parameter.device)
        run, size = open_runs[kind] if kind in open_runs else ([], next(left, math.inf))
        if not run:
            runs.append(run)
        run.append(parameter)
        open_runs[kind] = run, size
        if sum(member.nbytes for member in run) >= size:
            del open_runs[kind]
    return [Vector(run, flags=flags) for run in runs]


class Vector:
    """Parameters of one dtype and device as one vector.

    `data` are their elements, `flags` the numbers behind them (none for weights), `whole` both in one tensor.
    """

    def __init__(self, parameters: Sequence[Tensor], *, flags: bool = False) -> None:
        self.parameters = list(parameters)
        first = self.parameters[0]
        self.num_elements = sum(parameter.numel() for parameter in self.parameters)
        num_flags = len(self.parameters) if flags else 0
        self.whole = torch.zeros(self.num_elements + num_flags, dtype=first.dtype, device=first.device)
        self.data = self.whole[: self.num_elements]
        self.flags = self.whole[self.num_elements :]
        self.views: list[Tensor] = []
        start = 0
        for parameter in self.parameters:
            self.views.append(self.data[start : start + parameter.numel()].view(parameter.shape))
            start += parameter.numel()

    @property
    def shapes(self) -> list[torch.Size]:
        return [view.shape for view in self.views]

    @torch.no_grad()
    def load_weights(self) -> None:
        """Parameters into the vector."""
        torch._foreach_copy_(self.views, [parameter.detach() for parameter in self.parameters])

    @torch.no_grad()
    def store_weights(self) -> None:
        """The vector into the parameters, in place: whoever holds them sees the new values."""
        torch._foreach_copy_([parameter.detach() for parameter in self.parameters], self.views)

    @torch.no_grad()
    def load_gradients(self) -> None:
        """Gradients into the vector; where there is none, zeros and a zero flag."""
        present = [index for index, parameter in enumerate(self.parameters) if parameter.grad is not None]
        if len(present) < len(self.parameters):
            self.data.zero_()
        if present:
            gradients = [self._gradient(index) for index in present]
            torch._foreach_copy_([self.views[index] for index in present], gradients)
        if len(self.flags):
            flags = [0.0] * len(self.parameters)
            for index in present:
                flags[index] = 1.0
            self.flags.copy_(torch.tensor(flags, dtype=self.flags.dtype))

    @torch.no_grad()
    def store_gradients(self) -> None:
        """Give each parameter its part of the vector as gradient; none where no rank has one."""
        used = (self.flags != 0).tolist() if len(self.flags) else [True] * len(self.parameters)
        for parameter, view, is_used in zip(self.parameters, self.views, used, strict=True):
            parameter.grad = _laid_out_like(parameter, view) if is_used else None

    @torch.no_grad()
    def use_what_came(self) -> None:
        """A parameter without a gradient here has one all the same if the exchange has brought one."""
        for index in (self.flags == 0).nonzero().flatten().tolist() if len(self.flags) else ():
            self.flags[index] = float(bool(self.views[index].any()))

    def _gradient(self, index: int) -> Tensor:
        gradient = self.parameters[index].grad
        assert gradient is not None
        return gradient


def _laid_out_like(parameter: Tensor, view: Tensor) -> Tensor:
    """The view, or a copy: fused optimizers go through memory, so a gradient must lie there as its parameter does."""
    if parameter.stride() == view.stride():
        return view
    return torch.empty_like(parameter).copy_(view)
