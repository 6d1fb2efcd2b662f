"""DeepSpeed's kernels for the host: optimizers of offloaded states, pinned memory, and files on NVMe drives.

They would be compiled and really compute, which takes as long as it takes here and counts for nothing. Here each leaves
a record of its work on the host (`Work.place`), and tensors in host memory keep the values they have.

    cpu_adam, cpu_adagrad, cpu_lion    one update of one tensor: bytes of parameters, gradients and states
    async_io                           bytes read from and written to files, which have their size and no blocks on disk

Optimizers that run in processes of their own are in `deepspeed_processes.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sandtable.trace.work import Work
from sandtable.vgpu.packages.kernels import record_kernel

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["HOST_KERNELS"]


def _nothing(*settings: object) -> int:
    return 0


def _update(name: str, *, num_settings: int) -> Callable[..., int]:
    """Return an update of (parameters, gradients, states ...), which follow the settings."""

    def update(*arguments: Any) -> int:
        tensors: Sequence[Tensor] = arguments[num_settings:]
        read = sum(tensor.nbytes for tensor in tensors)
        written = read - tensors[1].nbytes
        work = Work(place="host", bytes_read=read, bytes_written=written)
        record_kernel(f"deepspeed::{name}", inputs=tensors, outputs=(), work=work)
        return 0

    return update


class PinHandle:
    """Allocates page-locked memory as `pin_handle` does: here it is memory like any other."""

    def new_cpu_locked_tensor(self, num_elem: int, example_tensor: Tensor) -> Tensor:
        return example_tensor.new_empty(num_elem, device="cpu")

    def free_cpu_locked_tensor(self, tensor: Tensor) -> bool:
        return True

    def free_cpu_locked_tensor_by_ptr(self, address: int) -> bool:
        return True

    def is_pinned(self, buffer: Tensor) -> bool:
        return True


class AsyncIoHandle(PinHandle):
    """Reads and writes files as `aio_handle` does; the time of those under way counts when they are waited for."""

    def __init__(
        self,
        block_size: int = 1024 * 1024,
        queue_depth: int = 128,
        single_submit: bool = False,
        overlap_events: bool = False,
        intra_op_parallelism: int = 1,
    ) -> None:
        self._settings = (block_size, queue_depth, single_submit, overlap_events, intra_op_parallelism)
        self._pending: list[tuple[str, Tensor]] = []

    def get_block_size(self) -> int:
        return self._settings[0]

    def get_queue_depth(self) -> int:
        return self._settings[1]

    def get_single_submit(self) -> bool:
        return self._settings[2]

    def get_overlap_events(self) -> bool:
        return self._settings[3]

    def get_intra_op_parallelism(self) -> int:
        return self._settings[4]

    def get_alignment(self) -> int:
        return 512 * self.get_intra_op_parallelism()

    def read(self, buffer: Tensor, filename: str, validate: bool = False, file_offset: int = 0) -> int:
        return self.pread(buffer, filename, validate, False, file_offset)

    def write(self, buffer: Tensor, filename: str, validate: bool = False, file_offset: int = 0) -> int:
        return self.pwrite(buffer, filename, validate, False, file_offset)

    def pread(self, buffer: Tensor, filename: str, validate: bool, is_async: bool, file_offset: int = 0) -> int:
        """Read a file, whose content stays what the buffer has."""
        self._pending.append(("read", buffer))
        return 0 if is_async else self.wait()

    def pwrite(self, buffer: Tensor, filename: Any, validate: bool, is_async: bool, file_offset: int = 0) -> int:
        """Make the file as long as it would be."""
        descriptor = filename if isinstance(filename, int) else os.open(filename, os.O_CREAT | os.O_WRONLY, 0o644)
        os.truncate(descriptor, max(os.fstat(descriptor).st_size, file_offset + buffer.nbytes))
        if not isinstance(filename, int):
            os.close(descriptor)
        self._pending.append(("write", buffer))
        return 0 if is_async else self.wait()

    def sync_pread(self, buffer: Tensor, filename: str, file_offset: int = 0) -> int:
        return self.pread(buffer, filename, False, False, file_offset)

    def sync_pwrite(self, buffer: Tensor, filename: Any, file_offset: int = 0) -> int:
        return self.pwrite(buffer, filename, False, False, file_offset)

    def async_pread(self, buffer: Tensor, filename: str, file_offset: int = 0) -> int:
        return self.pread(buffer, filename, False, True, file_offset)

    def async_pwrite(self, buffer: Tensor, filename: Any, file_offset: int = 0) -> int:
        return self.pwrite(buffer, filename, False, True, file_offset)

    def wait(self) -> int:
        """Record what was read and written since the last time, and return how many operations that were."""
        count = len(self._pending)
        for direction, buffer in self._pending:
            is_read = direction == "read"
            work = Work(
                place="disk",
                bytes_read=buffer.nbytes if is_read else 0,
                bytes_written=0 if is_read else buffer.nbytes,
            )
            record_kernel(f"deepspeed::aio_{direction}", inputs=(buffer,), outputs=(), work=work)
        self._pending.clear()
        return count


def _aio_read(buffer: Tensor, filename: str, *settings: object) -> int:
    return AsyncIoHandle().sync_pread(buffer, filename)


def _aio_write(buffer: Tensor, filename: str, *settings: object) -> int:
    return AsyncIoHandle().sync_pwrite(buffer, filename)


def _memcpy(destination: Tensor, source: Tensor) -> int:
    destination.copy_(source)
    return 0


HOST_KERNELS: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "cpu_adam": {
        "create_adam": _nothing,
        "destroy_adam": _nothing,
        "adam_update": _update("cpu_adam", num_settings=8),
        "adam_rollback": _update("cpu_adam_rollback", num_settings=8),
    },
    "cpu_adagrad": {
        "create_adagrad": _nothing,
        "destroy_adagrad": _nothing,
        "adagrad_update": _update("cpu_adagrad", num_settings=5),
    },
    "cpu_lion": {
        "create_lion": _nothing,
        "destroy_lion": _nothing,
        "lion_update": _update("cpu_lion", num_settings=6),
    },
    "pin_memory": {"pin_handle": PinHandle},
    "async_io": {
        "aio_handle": AsyncIoHandle,
        "aio_read": _aio_read,
        "aio_write": _aio_write,
        "deepspeed_memcpy": _memcpy,
    },
}
"""By the name of an op builder, the functions of the module that it would build."""
