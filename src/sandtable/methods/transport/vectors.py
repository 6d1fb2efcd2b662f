"""Flat vectors: the parameters of a model, or their gradients, laid end to end.

Networks like few large messages, models have many small tensors. A `Vector` is a run of parameters of one dtype on one
device as one 1-D tensor, with a view shaped like each parameter. `flatten` cuts a model into as few vectors as
possible, or into buckets of a given size.

A vector of gradients ends in one number per parameter, 1 where this rank has a gradient and 0 where it has none: summed
with the rest, they show every rank which parameters no rank used, for a few bytes and no extra message.
"""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

__all__ = ["Vector", "flatten"]


def flatten(parameters: Iterable[Tensor], *, sizes: Iterable[float] = (), flags: bool = False) -> "list[Vector]":
    """Return vectors that hold all the parameters, in order: one per dtype and device, or several.

    `sizes` are in bytes: the parameter that brings the first vector to the first size or above is its last, and so on;
    when the sizes run out, a vector is never full.
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

    `data` holds their elements, `flags` the numbers behind them (none for weights), `whole` both in one tensor.
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
        """Copy the parameters into the vector."""
        torch._foreach_copy_(self.views, [parameter.detach() for parameter in self.parameters])

    @torch.no_grad()
    def store_weights(self) -> None:
        """Copy the vector into the parameters, in place."""
        torch._foreach_copy_([parameter.detach() for parameter in self.parameters], self.views)

    @torch.no_grad()
    def load_gradients(self) -> None:
        """Copy the gradients into the vector; a missing one becomes zeros and a zero flag."""
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
        """Give each parameter its part of the vector as gradient, or none where no rank has one."""
        used = (self.flags != 0).tolist() if len(self.flags) else [True] * len(self.parameters)
        for parameter, view, is_used in zip(self.parameters, self.views, used, strict=True):
            parameter.grad = _laid_out_like(parameter, view) if is_used else None

    @torch.no_grad()
    def flag_received(self) -> None:
        """Flag parameters without a gradient on this rank for which the exchange has brought one."""
        for index in (self.flags == 0).nonzero().flatten().tolist() if len(self.flags) else ():
            self.flags[index] = float(bool(self.views[index].any()))

    def _gradient(self, index: int) -> Tensor:
        gradient = self.parameters[index].grad
        assert gradient is not None
        return gradient


def _laid_out_like(parameter: Tensor, view: Tensor) -> Tensor:
    """Return the view, or a copy with the parameter's strides: fused optimizers walk through memory."""
    if parameter.stride() == view.stride():
        return view
    return torch.empty_like(parameter).copy_(view)
