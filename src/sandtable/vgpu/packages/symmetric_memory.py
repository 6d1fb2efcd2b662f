"""Symmetric memory (`torch.distributed._symmetric_memory`): buffers that the ranks of a node read and write directly.

torch's own Python code runs: the fused products of asynchronous tensor parallelism cut a product into chunks and copy
one chunk from a peer's buffer while the product of another runs, on two streams. Two things are ours:

- A peer's buffer. A copy from it, or into it, is a message over the link. Only this rank issues it, but in all these
  algorithms the ranks of a group do the same in turn: while this one reads from the k-th after it, the k-th before it
  reads from this one. So it is recorded as a message received and a message sent, in one batch.
- Reductions that are one kernel (`one_shot_all_reduce`, `multimem_all_reduce_` and so on): recorded as the collective
  that they replace.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from sandtable.trace.work import Work
from sandtable.vgpu.packages.kernels import record_kernel
from sandtable.vgpu.packages.package import Package
from sandtable.vgpu.packages.watcher import Watcher
from sandtable.vgpu.preload import loaded_core

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["package"]

_SIGNAL_PAD_BYTES = 9216
"""torch's own default."""


def package(watcher: Watcher) -> Package:
    """Return what is changed in which module."""
    return Package(name="symmetric memory", adaptations={"torch.distributed._symmetric_memory": _adapt})


def _adapt(module: ModuleType) -> None:
    import torch
    from torch._C import _distributed_c10d

    module._SymmetricMemory = _distributed_c10d._SymmetricMemory = SymmetricMemory  # type: ignore[attr-defined, misc, assignment]
    library: Any = torch.library.Library("symm_mem", "IMPL")  # type: ignore[no-untyped-call]
    for name, function in _operators().items():
        if hasattr(torch.ops.symm_mem, name):
            library.impl(name, function, "CUDA")
    module._sandtable_library = library  # type: ignore[attr-defined]


class SymmetricMemory:
    """What stands for `torch._C._distributed_c10d._SymmetricMemory`: a tensor's buffers on all ranks of a group."""

    signal_pad_size = _SIGNAL_PAD_BYTES
    _groups: ClassVar[dict[int, str]] = {}
    """By the address of a tensor made here: the group that it was made for, or none yet."""

    def __init__(self, tensor: Tensor, group: Any) -> None:
        import torch

        self._tensor = tensor
        self._pad = torch.empty(self.signal_pad_size, dtype=torch.uint8, device=tensor.device)
        self.group = group
        self.rank: int = group.rank()
        self.world_size: int = group.size()
        self.buffer_size = tensor.untyped_storage().nbytes()
        self.offset = 0
        self.device = tensor.device
        self.buffer_ptrs = [tensor.data_ptr()] * self.world_size
        self.signal_pad_ptrs = [self._pad.data_ptr()] * self.world_size
        self.buffer_ptrs_dev = self.signal_pad_ptrs_dev = tensor.data_ptr()
        has_multicast = self.has_multicast_support(None, tensor.device.index)
        self.multicast_ptr = tensor.data_ptr() if has_multicast else 0

    # ---- making and meeting ----

    @classmethod
    def empty_strided_p2p(
        cls,
        size: Sequence[int],
        stride: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        group_name: str | None = None,
        alloc_id: int | None = None,
    ) -> Tensor:
        import torch

        tensor = torch.empty_strided(size, stride, dtype=dtype, device=device)
        cls._groups[tensor.untyped_storage().data_ptr()] = group_name or ""
        return tensor

    @classmethod
    def rendezvous(cls, tensor: Tensor, group_name: str | None = None) -> SymmetricMemory | None:
        """Return the buffers of the tensor on all ranks of the group; None if it is no symmetric memory."""
        address = tensor.untyped_storage().data_ptr()
        if address not in cls._groups:
            return None
        name = getattr(group_name, "group_name", group_name) or cls._groups[address]
        return cls(tensor, _group(name))

    @classmethod
    def is_symm_mem_tensor(cls, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in cls._groups

    @staticmethod
    def set_group_info(*_: Any) -> None:
        """Accept a group: any will do."""

    @staticmethod
    def has_multicast_support(device_type: Any, index: int | None) -> bool:
        import torch

        return torch.cuda.get_device_capability(index)[0] >= 9

    @staticmethod
    def get_backend(device: Any) -> str:
        return "CUDA"

    @staticmethod
    def set_backend(name: str) -> None:
        """Accept any."""

    @staticmethod
    def get_mempool_allocator(device: Any) -> None:
        """Return the usual one."""

    # ---- using ----

    def get_buffer(self, rank: int, sizes: Sequence[int], dtype: torch.dtype, storage_offset: int | None = 0) -> Tensor:
        """Return a rank's buffer, or a part of it, as a tensor."""
        import torch

        flat = torch.empty(0, dtype=dtype, device=self.device).set_(self._tensor.untyped_storage())
        strides = torch._prims_common.make_contiguous_strides_for(tuple(sizes))
        view = flat.as_strided(tuple(sizes), strides, storage_offset or 0)
        return view if rank == self.rank else _remote_class()(view, self, rank)

    def get_remote_tensor(self, peer: int, sizes: Sequence[int], dtype: torch.dtype) -> Tensor:
        return self.get_buffer(peer, sizes, dtype)

    def get_signal_pad(
        self, rank: int, sizes: Sequence[int] = (), dtype: torch.dtype | None = None, storage_offset: int = 0
    ) -> Tensor:
        pad = self._pad.view(dtype) if dtype is not None else self._pad
        return pad[: functools.reduce(lambda a, b: a * b, sizes, 1)].view(*sizes) if sizes else pad

    def barrier(self, channel: int = 0, timeout_ms: int = 0) -> None:
        """Record a kernel that signals all peers and waits for them."""
        _record_signal("barrier")

    def put_signal(self, dst_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        _record_signal("put_signal")

    def wait_signal(self, src_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        _record_signal("wait_signal")

    @staticmethod
    def stream_write_value32(tensor: Tensor, offset: int, val: int) -> Tensor:
        _record_signal("stream_write_value32")
        return tensor

    @staticmethod
    def memset32(tensor: Tensor, offset: int, val: int, count: int) -> Tensor:
        _record_signal("memset32")
        return tensor

    def exchange(self, *, sent: Tensor, received: Tensor, distance: int) -> None:
        """Record a message from the rank `distance` after this one, and one to the rank as far before it."""
        import torch.distributed as dist

        after, before = ((self.rank + step) % self.world_size for step in (distance, -distance))
        tag = loaded_core().ROTATION_TAG
        operations = [
            dist.P2POp(dist.irecv, received, group=self.group, tag=tag, group_peer=after),
            dist.P2POp(dist.isend, sent, group=self.group, tag=tag, group_peer=before),
        ]
        for request in dist.batch_isend_irecv(operations):
            request.wait()


@functools.cache
def _remote_class() -> Callable[[Tensor, SymmetricMemory, int], Tensor]:
    import torch

    class RemoteBuffer(torch.Tensor):
        """A peer's buffer: copies from and into it go over the link; all else done with it is timed as local."""

        _memory: SymmetricMemory
        _distance: int

        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            with torch._C.DisableTorchFunctionSubclass():
                if function is torch.Tensor.copy_:
                    return _copy(*args)
                result = function(*args, **(kwargs or {}))
                return result.as_subclass(torch.Tensor) if isinstance(result, cls) else result

    def make(view: Tensor, memory: SymmetricMemory, rank: int) -> Tensor:
        buffer = view.as_subclass(RemoteBuffer)
        buffer._memory = memory
        buffer._distance = (rank - memory.rank) % memory.world_size
        return buffer

    return make


def _copy(target: Tensor, source: Tensor, *_: Any) -> Tensor:
    """Copy from a peer's buffer, as a peer copies from this rank's; or into one, likewise."""
    remote: Any = source if hasattr(source, "_memory") else target
    local = target if remote is source else source
    memory, distance = remote._memory, remote._distance
    own = remote.as_subclass(type(local)) if not hasattr(local, "_memory") else remote
    if remote is source:
        memory.exchange(sent=own, received=local, distance=distance)
    else:
        memory.exchange(sent=local.contiguous(), received=own, distance=-distance % memory.world_size)
    return target


def _record_signal(name: str) -> None:
    record_kernel(f"symm_mem::{name}", inputs=[], outputs=[], work=Work(bytes_read=0, bytes_written=0))


def _operators() -> dict[str, Callable[..., Any]]:
    """Return the kernels of `torch.ops.symm_mem` that are written for a card alone, as collectives."""
    return {
        "one_shot_all_reduce": lambda x, op, group: _all_reduce(x.new_empty(x.shape), op, group),
        "one_shot_all_reduce_out": lambda x, op, group, out: _all_reduce(out, op, group),
        "one_shot_all_reduce_copy": lambda buffer, x, op, group: _all_reduce(x.new_empty(x.shape), op, group),
        "one_shot_all_reduce_copy_out": lambda buffer, x, op, group, out: _all_reduce(out, op, group),
        "two_shot_all_reduce_": _all_reduce,
        "two_shot_all_reduce_out": lambda x, op, group, out: _all_reduce(out, op, group),
        "multimem_all_reduce_": _all_reduce,
        "multimem_one_shot_all_reduce": lambda x, op, group: _all_reduce(x.new_empty(x.shape), op, group),
        "multimem_one_shot_all_reduce_out": lambda x, op, group, out: _all_reduce(out, op, group),
        "multimem_all_gather_out": _all_gather,
        "reduce_scatter_out": _reduce_scatter,
        "nvshmem_all_to_all": _all_to_all,
        "nvshmem_broadcast": _broadcast,
        "stream_write_value32_": SymmetricMemory.stream_write_value32,
        "memset32_": SymmetricMemory.memset32,
        "_async_input_mm": lambda a, b, signals, pivot: a @ b,
    }


def _all_reduce(x: Tensor, op: str, group_name: str) -> Tensor:
    import torch.distributed as dist

    kinds = {"sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.AVG, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
    dist.all_reduce(x, kinds.get(op, dist.ReduceOp.SUM), _group(group_name))
    return x


def _all_gather(x: Tensor, group_name: str, out: Tensor) -> Tensor:
    import torch.distributed as dist

    dist.all_gather_into_tensor(out, x, _group(group_name))
    return out


def _reduce_scatter(x: Tensor, group_name: str, split_last_dim: bool, output: Tensor) -> Tensor:
    import torch.distributed as dist

    dist.reduce_scatter_tensor(output, x, group=_group(group_name))
    return output


def _all_to_all(x: Tensor, out: Tensor, group_name: str) -> Tensor:
    import torch.distributed as dist

    dist.all_to_all_single(out, x, group=_group(group_name))
    return out


def _broadcast(x: Tensor, root: int, group_name: str) -> Tensor:
    import torch.distributed as dist

    dist.broadcast(x, group=_group(group_name), group_src=root)
    return x


def _group(name: str) -> Any:
    import torch.distributed.distributed_c10d as c10d

    resolve: Callable[[str], Any] = c10d._resolve_process_group  # type: ignore[attr-defined, assignment]
    return resolve(name)
