"""`flash_attn.utils.distributed`: collectives that gradients flow through.

Tensors are gathered and scattered along their first dim. Each function has the other one as its backward pass; that of
a sum over all ranks passes the gradient on.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

__all__ = [
    "all_gather",
    "all_gather_raw",
    "all_reduce",
    "all_reduce_raw",
    "allreduce_sequence_parallel_grad",
    "get_dim_for_local_rank",
    "reduce_scatter",
    "reduce_scatter_raw",
    "sync_shared_params",
]


def all_gather_raw(input_: Tensor, process_group: Any, async_op: bool = False) -> tuple[Tensor, Any]:
    """Return the tensors of all ranks, and what to wait for."""
    output = input_.new_empty((dist.get_world_size(process_group) * input_.shape[0], *input_.shape[1:]))
    work = dist.all_gather_into_tensor(output, input_.contiguous(), group=process_group, async_op=async_op)
    return output, work


def reduce_scatter_raw(input_: Tensor, process_group: Any, async_op: bool = False) -> tuple[Tensor, Any]:
    """Return the own part of the sum, and what to wait for."""
    num_ranks = dist.get_world_size(process_group)
    if input_.shape[0] % num_ranks:
        raise ValueError(f"the first dim ({input_.shape[0]}) must be a multiple of the ranks ({num_ranks})")
    output = input_.new_empty((input_.shape[0] // num_ranks, *input_.shape[1:]))
    work = dist.reduce_scatter_tensor(output, input_.contiguous(), group=process_group, async_op=async_op)
    return output, work


def all_reduce_raw(input_: Tensor, process_group: Any, async_op: bool = False) -> tuple[Tensor, Any]:
    """Return the sum, which takes the place of the input if that is contiguous, and what to wait for."""
    output = input_.contiguous()
    return output, dist.all_reduce(output, group=process_group, async_op=async_op)


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input_: Tensor, process_group: Any) -> Tensor:
        ctx.process_group = process_group
        return all_gather_raw(input_, process_group)[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return reduce_scatter_raw(grad, ctx.process_group)[0], None


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input_: Tensor, process_group: Any) -> Tensor:
        ctx.process_group = process_group
        return reduce_scatter_raw(input_, process_group)[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return all_gather_raw(grad, ctx.process_group)[0], None


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input_: Tensor, process_group: Any) -> Tensor:
        return all_reduce_raw(input_, process_group)[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


all_gather, reduce_scatter, all_reduce = _AllGather.apply, _ReduceScatter.apply, _AllReduce.apply


def sync_shared_params(model: torch.nn.Module, process_group: Any) -> None:
    """Give all ranks the first one's parameters that are marked `_shared_params`."""
    source = dist.get_global_rank(process_group, 0)
    for _, parameter in _marked(model, "_shared_params"):
        with torch.no_grad():
            dist.broadcast(parameter, src=source, group=process_group)


def allreduce_sequence_parallel_grad(model: torch.nn.Module, process_group: Any) -> None:
    """Add up the gradients of parameters that are marked `_sequence_parallel`, all in one call."""
    grads = [parameter.grad for _, parameter in _marked(model, "_sequence_parallel") if parameter.grad is not None]
    if grads:
        with torch.no_grad():
            together = torch.cat([grad.flatten() for grad in grads])
            dist.all_reduce(together, group=process_group)
            totals = torch.split(together, [grad.numel() for grad in grads])
            for grad, total in zip(grads, totals, strict=True):
                grad.copy_(total.view_as(grad))


def get_dim_for_local_rank(dim: int, world_size: int, local_rank: int, multiple_of: int = 1) -> int:
    """Return a rank's part of a dim that is shared out in multiples; the first ranks get one more."""
    multiple = dim // multiple_of
    return (multiple // world_size + int(local_rank < multiple % world_size)) * multiple_of


def _marked(model: torch.nn.Module, mark: str) -> list[tuple[str, torch.nn.Parameter]]:
    return sorted((name, one) for name, one in model.named_parameters() if getattr(one, mark, False))
