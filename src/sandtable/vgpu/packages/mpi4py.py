# ruff: noqa: N802 - the names are MPI's
"""mpi4py: `MPI.COMM_WORLD` of a rank, for scripts that find each other through MPI before they use torch.

The compiled module is never loaded, so neither it nor an MPI library needs to be installed. Objects travel between
hosts as they do in a group of gloo: pickled, with a record for each exchange. Where a class of ranks has one captured,
all of them contribute what that one does.
"""

from __future__ import annotations

import functools
import operator
import os
import pickle
import socket
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NoReturn

from sandtable.vgpu.packages.package import Package

__all__ = ["package"]

_VERSION = "4.1.0"
_OBJECT_BYTES = 4096
_STARTED_BY_MPI = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "SUM": operator.add,
    "PROD": operator.mul,
    "MAX": max,
    "MIN": min,
    "LAND": lambda a, b: bool(a and b),
    "LOR": lambda a, b: bool(a or b),
}


def package(*, place: Callable[[], tuple[int, int]], new_group: Callable[[str], Any]) -> Package:
    """Return what stands in for mpi4py.

    `place` returns this rank and the world size, and `new_group` makes a group of all ranks: when the first objects are
    exchanged. Where no launcher of MPI started the ranks, each is alone, as it would be, and a missing mpi4py stays so.
    """
    is_started = any(name in os.environ for name in _STARTED_BY_MPI)
    world = _Communicator(place if is_started else lambda: (0, 1), functools.cache(functools.partial(new_group, "MPI")))
    return Package(
        name="mpi4py",
        compiled={"mpi4py.MPI": functools.partial(_fill, world)},
        missing={"mpi4py": lambda module: None} if is_started else {},
        version=_VERSION,
    )


def _fill(world: _Communicator, module: ModuleType) -> None:
    alone = _Communicator(lambda: (0, 1), lambda: None)
    names: dict[str, Any] = {
        "COMM_WORLD": world,
        "COMM_SELF": alone,
        "Comm": _Communicator,
        "Intracomm": _Communicator,
        "Get_processor_name": socket.gethostname,
        "Wtime": time.time,
        "Is_initialized": lambda: True,
        "Is_finalized": lambda: False,
        "Init": lambda: None,
        "Finalize": lambda: None,
        **_OPERATIONS,
    }
    for name, value in names.items():
        setattr(module, name, value)


class _Communicator:
    """A communicator, as far as scripts that train use one."""

    def __init__(self, place: Callable[[], tuple[int, int]], group: Callable[[], Any]) -> None:
        self._place, self._group = place, group

    @property
    def rank(self) -> int:
        return self._place()[0]

    @property
    def size(self) -> int:
        return self._place()[1]

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size

    def barrier(self) -> None:
        self.allgather(None)

    def bcast(self, obj: Any = None, root: int = 0) -> Any:
        if self.size == 1:
            return obj
        data = pickle.dumps(obj)
        size = self._broadcast(_number(len(data)), root)
        received = self._broadcast(_bytes(data, int(size)), root)
        return obj if root == self.rank else pickle.loads(received.numpy().tobytes())

    def allgather(self, sendobj: Any) -> list[Any]:
        if self.size == 1:
            return [sendobj]
        data = pickle.dumps(sendobj)
        sizes = [int(size) for size in self._all_gather(_number(len(data)))]
        parts = self._all_gather(_bytes(data, _round_up(max(sizes))))
        return [pickle.loads(part.numpy().tobytes()[:size]) for part, size in zip(parts, sizes, strict=True)]

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        gathered = self.allgather(sendobj)
        return gathered if self.rank == root else None

    def scatter(self, sendobj: Sequence[Any] | None = None, root: int = 0) -> Any:
        return self.bcast(sendobj, root)[self.rank]

    def allreduce(self, sendobj: Any, op: Callable[[Any, Any], Any] = operator.add) -> Any:
        return functools.reduce(op, self.allgather(sendobj))

    def reduce(self, sendobj: Any, op: Callable[[Any, Any], Any] = operator.add, root: int = 0) -> Any:
        reduced = self.allreduce(sendobj, op)
        return reduced if self.rank == root else None

    def Abort(self, errorcode: int = 0) -> NoReturn:
        os._exit(errorcode)

    Barrier = barrier

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(
            f"MPI's {name} is not rehearsed; ranks can exchange objects with bcast, scatter, gather, allgather, reduce "
            "and allreduce, and tensors with torch.distributed"
        )

    def _broadcast(self, tensor: Any, root: int) -> Any:
        self._group().broadcast(tensor, root).wait()
        return tensor

    def _all_gather(self, tensor: Any) -> list[Any]:
        parts = [tensor.clone() for _ in range(self.size)]
        self._group().allgather([parts], [tensor]).wait()
        return parts


def _round_up(size: int) -> int:
    """Return a size that all ranks agree on, though one stands for a class and their objects differ by a few bytes."""
    return -(-size // _OBJECT_BYTES) * _OBJECT_BYTES


def _number(value: int) -> Any:
    import torch

    return torch.tensor([value])


def _bytes(data: bytes, size: int) -> Any:
    """Return the data, padded or cut to the size."""
    import torch

    return torch.frombuffer(bytearray(data[:size].ljust(size, b"\0")), dtype=torch.uint8)
