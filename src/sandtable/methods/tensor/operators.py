"""Operators: the gates between what every rank holds whole and what the ranks share.

A layer is a room in which each rank does its part of the work. Whoever goes in carries nothing but must be paid on the
way back; whoever comes out pays and goes back free: each gate has a forward and a backward direction, and they come in
conjugate pairs.

    gate      forward                        backward                       from -> to
    copy      identity                       all-reduce                     whole -> split work         (Megatron's f)
    reduce    all-reduce                     identity                       partial sums -> whole       (Megatron's g)
    gather    all-gather                     reduce-scatter                 share of tokens -> split work
    scatter   reduce-scatter                 all-gather                     partial sums -> share of tokens
    split     this rank's share              all-gather                     whole -> share of tokens
    join      all-gather                     this rank's share              share of tokens -> whole

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
    """f: the same forward; backward the sum of the ranks' gradients."""
    return _pass(tensor, group, _same, group.all_reduce)


def reduce(tensor: Tensor, group: TensorGroup) -> Tensor:
    """g: the sum of the ranks' parts forward; the same backward."""
    return _pass(tensor, group, group.all_reduce, _same)


def gather(tensor: Tensor, group: TensorGroup, dim: int) -> Tensor:
    """All shares along `dim` forward; backward this rank's share of the sum of gradients."""
    return _pass(tensor, group, partial(group.all_gather, dim=dim), partial(group.reduce_scatter, dim=dim))


def scatter(tensor: Tensor, group: TensorGroup, dim: int) -> Tensor:
    """This rank's share along `dim` of the sum of the ranks' parts forward; backward the gradients of all shares."""
    return _pass(tensor, group, partial(group.reduce_scatter, dim=dim), partial(group.all_gather, dim=dim))


def split(tensor: Tensor, group: TensorGroup, dim: int) -> Tensor:
    """This rank's share along `dim` of what all have; backward the gradients of all shares."""
    return _pass(tensor, group, partial(group.share, dim=dim), partial(group.all_gather, dim=dim))


def join(tensor: Tensor, group: TensorGroup, dim: int) -> Tensor:
    """All shares along `dim`, for work that every rank does alike; backward this rank's share of the gradient."""
    return _pass(tensor, group, partial(group.all_gather, dim=dim), partial(group.share, dim=dim))


def _pass(tensor: Tensor, group: TensorGroup, forth: Move, back: Move) -> Tensor:
    if group.size == 1:
        return tensor
    passed: Tensor = _Gate.apply(tensor, forth, back)  # type: ignore[no-untyped-call]
    return passed


class _Gate(Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, forth: Move, back: Move) -> Tensor:
        ctx.back = back
        return forth(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(gradient), None, None


def _same(tensor: Tensor) -> Tensor:
    return tensor
