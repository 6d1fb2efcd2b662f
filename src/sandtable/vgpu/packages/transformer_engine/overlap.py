"""Userbuffers: tensor-parallel communication beside the product that it feeds, or that feeds it.

    all-gather, then product: the ring passes chunks on while the product of the chunk that is here runs
    product, then reduce-scatter: the ring passes on the sums of a chunk while the product of the next one runs
    bulk: a collective beside a product that has nothing to do with it

Chunks are one per rank of the group (`CommOverlapP2P`) or `num_splits` (`CommOverlap`). Products run on the current
stream, communication on the group's; each chunk waits for the other side by events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sandtable.vgpu.packages.transformer_engine.enumerations import CommOverlapType

__all__ = [
    "CommOverlap",
    "CommOverlapBase",
    "CommOverlapCore",
    "CommOverlapHelper",
    "CommOverlapP2P",
    "CommOverlapP2PBase",
    "bulk_overlap_ag_with_external_gemm",
    "device_supports_multicast",
    "get_stream_priority_range",
    "nvte_built_with_cublasmp",
    "ubuf_built_with_mpi",
]


class CommOverlapHelper:
    """Knows the ranks that share a buffer: those of the tensor-parallel group."""

    def __init__(self, world_group: Any = None, intra_node_group: Any = None) -> None:
        self.group = intra_node_group if intra_node_group is not None else world_group


class CommOverlapCore:
    """A buffer that all ranks of a group can write, and the stream on which they do."""

    p2p = False

    def __init__(
        self,
        buffer_shape: Sequence[int],
        buffer_dtype: torch.dtype,
        helper: CommOverlapHelper,
        tp_size: int,
        *settings: Any,
        num_splits: int = 4,
        atomic_gemm: bool = False,
        **options: Any,
    ) -> None:
        self._group = helper.group
        self._tp_size = tp_size
        self._rank = dist.get_rank(self._group)
        self._num_chunks = tp_size if self.p2p else num_splits
        self._atomic = atomic_gemm
        self._buffer = torch.empty(tuple(buffer_shape), dtype=buffer_dtype, device="cuda")
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def get_tp_size(self) -> int:
        return self._tp_size

    def is_atomic_gemm(self) -> bool:
        return self._atomic

    def is_p2p_overlap(self) -> bool:
        return self.p2p

    def is_fp8_ubuf(self) -> bool:
        return self._buffer.element_size() == 1

    def with_cublasmp(self) -> bool:
        return False

    def _local_chunk(self) -> Tensor:
        return self._buffer.chunk(self._tp_size)[self._rank]

    def copy_into_buffer(self, input: Tensor, local_chunk: bool = False) -> None:
        target = self._local_chunk() if local_chunk else self._buffer
        target.view(-1).copy_(input.view(target.dtype).reshape(-1) if input.element_size() == 1 else input.reshape(-1))

    def get_buffer(self, local_chunk: bool = False, shape: Sequence[int] | None = None) -> Tensor:
        source = self._local_chunk() if local_chunk else self._buffer
        return source if shape is None else source.view(tuple(shape))

    def get_communication_stream(self) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
        return self._stream, self._stream

    def overlap(
        self,
        product: Callable[[int], None],
        *,
        kind: Any,
        bulk: bool,
        output: Tensor | None,
        num_bytes: int,
    ) -> None:
        """Run `product(share)`, which computes one of `share` chunks, beside the communication."""
        gathers = kind == CommOverlapType.AG
        if bulk:
            self._beside(product, gathers, output)
        elif gathers:
            self._gather_then_multiply(product, output)
        else:
            self._multiply_then_scatter(product, output)

    def _beside(self, product: Callable[[int], None], gathers: bool, output: Tensor | None) -> None:
        """Run a collective on its stream beside the whole product."""
        main = torch.cuda.current_stream()
        self._stream.wait_stream(main)
        with torch.cuda.stream(self._stream):
            if gathers:
                dist.all_gather_into_tensor(self._buffer, self._local_chunk(), group=self._group)
            else:
                target = self._local_chunk() if output is None else output.view(self._local_chunk().shape)
                dist.reduce_scatter_tensor(target, self._buffer, group=self._group)
        product(1)
        main.wait_stream(self._stream)

    def _gather_then_multiply(self, product: Callable[[int], None], output: Tensor | None) -> None:
        main = torch.cuda.current_stream()
        self._stream.wait_stream(main)
        for step in range(self._tp_size):
            product(self._tp_size)
            if step < self._tp_size - 1:
                self._pass_on(self._buffer.chunk(self._tp_size)[(self._rank - step) % self._tp_size])
                main.wait_stream(self._stream)
        if output is not None:
            output.view(-1).copy_(self._local_chunk().reshape(-1).view(output.dtype)[: output.numel()])

    def _multiply_then_scatter(self, product: Callable[[int], None], output: Tensor | None) -> None:
        main = torch.cuda.current_stream()
        assert output is not None
        rows = output if output.dim() > 1 else self._local_chunk()
        partial = torch.empty((self._tp_size * rows.shape[0], *rows.shape[1:]), dtype=rows.dtype, device="cuda")
        for chunk in range(self._num_chunks):
            product(self._num_chunks)
            self._stream.wait_stream(main)
            with torch.cuda.stream(self._stream):
                if self.p2p:
                    if chunk < self._num_chunks - 1:
                        self._pass_on(partial.chunk(self._tp_size)[(self._rank - chunk) % self._tp_size])
                else:
                    part = rows.reshape(-1).chunk(self._num_chunks)[chunk]
                    dist.reduce_scatter_tensor(
                        part, partial.reshape(-1)[: part.numel() * self._tp_size], group=self._group
                    )
        main.wait_stream(self._stream)
        if self.p2p:
            torch.sum(partial.view(self._tp_size, *rows.shape), dim=0, out=rows)

    def _pass_on(self, chunk: Tensor) -> None:
        """Send a chunk to the next rank of the ring and receive one from the one before."""
        after, before = (self._rank + 1) % self._tp_size, (self._rank - 1) % self._tp_size
        received = torch.empty_like(chunk)
        with torch.cuda.stream(self._stream):
            work = dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, chunk, group=self._group, group_peer=after),
                    dist.P2POp(dist.irecv, received, group=self._group, group_peer=before),
                ]
            )
            for request in work:
                request.wait()


class CommOverlapBase(CommOverlapCore):
    """The kind whose kernels move the chunks."""


class CommOverlapP2PBase(CommOverlapCore):
    """The kind whose copy engines pass chunks around a ring."""

    p2p = True


CommOverlap = CommOverlapBase
CommOverlapP2P = CommOverlapP2PBase


def bulk_overlap_ag_with_external_gemm(communicator: Any, send_stream: Any, recv_stream: Any) -> None:
    """Gather beside a product that another communicator runs."""
    communicator._beside(lambda share: None, True, None)


def device_supports_multicast(device_id: int = -1) -> bool:
    """Return whether switches can send to all: from Hopper on."""
    return torch.cuda.get_device_capability() >= (9, 0)


def get_stream_priority_range(device_id: int = -1) -> tuple[int, int]:
    return 0, -5


def ubuf_built_with_mpi() -> bool:
    return False


def nvte_built_with_cublasmp() -> bool:
    return False
