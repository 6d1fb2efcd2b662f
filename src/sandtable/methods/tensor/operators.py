"""Operators: the gates between replicated work, which every rank does alike, and split work.

Each gate has a forward and a backward communication, and they come in conjugate pairs: what one does forward, the other
does backward.

    gate      forward                        backward                       from -> to
    copy      identity                       all-reduce                     replicated -> split work    (Megatron's f)
    reduce    all-reduce                     identity                       partial sums -> replicated  (Megatron's g)
    gather    all-gather                     reduce-scatter                 share of tokens -> split work
    scatter   reduce-scatter                 all-gather                     partial sums -> share of tokens
    split     this rank's share              all-gather                     replicated -> share of tokens
    join      all-gather                     this rank's share              share of tokens -> replicated

Shoeybi et al. 2019 (arXiv:1909.08053) for the first two, Korthikanti et al. 2022 (arXiv:2205.05198) for the others.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from sandtable.methods.tensor.group import TensorGroup

__all__ = ["copy", "gather", "join", "reduce", "scatter", "split"]

Move = Callable[[Tensor], Tensor]


def copy(tensor: Tensor, group: TensorGroup) -> Tensor:
    """Pass the tensor on; backward, sum the ranks' gradients (f)."""
    return _pass(tensor, group, _same, group.all_reduce)


def reduce(tensor: Tensor, group: TensorGroup) -> Tensor:
    """Sum the ranks' parts; backward, pass the gradient on (g)."""
    return _pass(tensor, group, group.all_reduce, _same)


def gather(tensor: Tensor, group: TensorGroup, dim: int) -> Tensor:
    """Gather all shares along `dim`; backward, take this rank's share of the sum of gradients."""
    return _pass(tensor, group, partial(group.all_gather, dim=dim), partial(group.reduce_scatter, dim=dim))


def scatter(tensor: Tensor, group: TensorGroup, dim: int) -> Tensor:
    """Take this rank's share along `dim` of the sum of the ranks' parts; backward, gather the gradients."""
    return _pass(tensor, group, partial(group.reduce_scatter, dim=dim), partial(group.all_gather, dim=dim))


def split(tensor: Tensor, group: TensorGroup, dim: int) -> Tensor:
    """Take this rank's share along `dim` of a replicated tensor; backward, gather the gradients."""
    return _pass(tensor, group, partial(group.share, dim=dim), partial(group.all_gather, dim=dim))


def join(tensor: Tensor, group: TensorGroup, dim: int) -> Tensor:
    """Gather all shares along `dim`, for replicated work; backward, take this rank's share of the gradient."""
    return _pass(tensor, group, partial(group.all_gather, dim=dim), partial(group.share, dim=dim))


def _pass(tensor: Tensor, group: TensorGroup, forward: Move, backward: Move) -> Tensor:
    if group.size == 1:
        return tensor
    passed: Tensor = _Gate.apply(tensor, forward, backward)  # type: ignore[no-untyped-call]
    return passed


class _Gate(Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, forward: Move, backward: Move) -> Tensor:
        ctx.move_back = backward
        return forward(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.move_back(gradient), None, None


def _same(tensor: Tensor) -> Tensor:
    return tensor
