"""DeepSpeed's ZeRO-3: shards of all ranks are copied in one operator instead of one view after the other.

A buffer that is gathered from all ranks, or scattered to them, holds a shard of each parameter per rank. DeepSpeed
takes it apart, and puts it together, with a view of every shard: 3,072 ranks and 292 parameters make 2.7 million per
step and rank. The operators here have the same result, and `engine/compute/shards.py` counts the views.

    deepspeed::interleave_shards   gradients -> what ranks reduce: rank 0's shard of each, rank 1's shard of each, ...
    deepspeed::join_shards         what was gathered -> one parameter: the rows of a strided matrix, end to end
"""

from __future__ import annotations

import functools
from math import ceil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["SCHEMAS", "adapt_gathering", "adapt_reducing", "define_kernels"]

SCHEMAS = (
    "interleave_shards(Tensor[] tensors, int num_shards) -> Tensor",
    "join_shards(Tensor shards, int num_elements) -> Tensor",
)

_BLOCK_BYTES = 512
"""The caching allocator's smallest block."""


def define_kernels(library: Any) -> None:
    """Define shapes, and values where they are known."""
    import torch

    def interleave_shards(tensors: list[Tensor], num_shards: int) -> Tensor:
        sizes = [_shard_size(tensor, num_shards) for tensor in tensors]
        rows = tensors[0].new_zeros(num_shards, sum(sizes))
        for tensor, columns in zip(tensors, torch.split(rows, sizes, dim=1), strict=True):
            padding = columns.numel() - tensor.numel()
            columns.copy_(torch.nn.functional.pad(tensor.reshape(-1), (0, padding)).view_as(columns))
        return rows.view(-1)

    def join_shards(shards: Tensor, num_elements: int) -> Tensor:
        return shards.reshape(-1)[:num_elements].clone()

    def interleaved(tensors: list[Tensor], num_shards: int) -> Tensor:
        return tensors[0].new_empty(num_shards * sum(_shard_size(tensor, num_shards) for tensor in tensors))

    library.impl("interleave_shards", interleaved, "Meta")
    library.impl("join_shards", lambda shards, num_elements: shards.new_empty(num_elements), "Meta")
    library.impl("interleave_shards", interleave_shards, "CPU")
    library.impl("join_shards", join_shards, "CPU")


def adapt_reducing(module: Any) -> None:
    """Replace `reduce_scatter_coalesced` of deepspeed.runtime.comm.coalesced_collectives."""
    import torch

    @functools.wraps(module.reduce_scatter_coalesced)
    @torch.no_grad()
    def reduce_scatter_coalesced(tensors: list[Tensor], group: Any = None) -> list[Tensor]:
        dist = module.dist
        rank, num_ranks = dist.get_rank(group), dist.get_world_size(group)
        sizes = [_shard_size(tensor, num_ranks) for tensor in tensors]
        if len(tensors) == 1 and tensors[0].numel() % num_ranks == 0:
            flat = tensors[0].view(-1)
        else:
            padding = _padding_blocks(tensors, num_ranks)
            flat = torch.ops.deepspeed.interleave_shards(tensors, num_ranks)
            del padding
        flat.div_(num_ranks)
        shard = flat.view(num_ranks, -1)[rank]
        module._torch_reduce_scatter_fn(flat, shard, group=group)
        held = [_held(tensor, size, rank) for tensor, size in zip(tensors, sizes, strict=True)]
        return [piece[:num] for piece, num in zip(torch.split(shard, sizes), held, strict=True)]

    module.reduce_scatter_coalesced = reduce_scatter_coalesced


def adapt_gathering(module: Any) -> None:
    """Replace what deepspeed.runtime.zero.partition_parameters does with a gathered buffer."""
    handle_type = module.AllGatherCoalescedHandle
    original = handle_type.wait

    @functools.wraps(original)
    def wait(self: Any, handle_dependency: bool = True) -> None:
        if self.complete or self.quantization or self.use_secondary_tensor:
            original(self, handle_dependency)
            return
        self.allgather_handle.wait()
        first = self.partitions[0]
        offset = first.storage_offset()
        for param in self.params:
            size = param.ds_tensor.ds_numel
            num_shards = min(self.world_size, ceil(param.ds_numel / size))
            shards = first.as_strided((num_shards, size), (first.numel(), 1), offset)
            whole = module.torch.ops.deepspeed.join_shards(shards, param.ds_numel)
            param.data = whole.view(param.ds_shape).to(param.ds_tensor.dtype)
            param.ds_status = module.ZeroParamStatus.AVAILABLE
            offset += size
        accelerator = module.get_accelerator()
        if not accelerator.is_synchronized_device() and handle_dependency:
            first.record_stream(accelerator.current_stream())
        self.complete = True
        if not accelerator.is_synchronized_device() and not handle_dependency:
            handle_type.data_buffer.append(self.partitions)

    handle_type.wait = wait


def _shard_size(tensor: Tensor, num_shards: int) -> int:
    return ceil(tensor.numel() / num_shards)


def _held(tensor: Tensor, size: int, rank: int) -> int:
    """Return how many elements of `tensor` are in the shard of `rank`: fewer, or none, at the end of it."""
    return min(max(tensor.numel() - rank * size, 0), size)


def _padding_blocks(tensors: list[Tensor], num_shards: int) -> Tensor:
    """Allocate what the tensors that fill incomplete shards take: a small block each."""
    num_incomplete = sum(num_shards - tensor.numel() // _shard_size(tensor, num_shards) for tensor in tensors)
    return tensors[0].new_empty(num_incomplete * _BLOCK_BYTES // tensors[0].element_size())
