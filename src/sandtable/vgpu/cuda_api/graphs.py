"""CUDA graphs: not rehearsed. Creating one raises an error; asking whether one is being captured works."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NoReturn

__all__ = ["names"]


class CUDAGraph:
    """Refuses at construction: a graph hides from the host the operators that a rehearsal records."""

    def __new__(cls, *_: object, **__: object) -> NoReturn:
        raise NotImplementedError(
            "sandtable: CUDA graphs cannot be rehearsed, because replay hides the operators from the host; "
            "run the script without them (the step's operators are the same)"
        )


class AllocatorState:
    """What a CUDA build restores memory from when a graph is replayed; only its name is needed."""


def names(core: ModuleType) -> dict[str, Any]:
    """Return the names of ``torch._C`` that belong to CUDA graphs."""
    return {
        "_CUDAGraph": CUDAGraph,
        "_cuda_CUDAAllocator_AllocatorState": AllocatorState,
        "_graph_pool_handle": lambda: (0, 0),
        "_cuda_isCurrentStreamCapturing": lambda: False,
    }
