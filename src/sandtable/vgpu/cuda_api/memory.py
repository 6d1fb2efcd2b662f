"""Memory statistics and the caching allocator's controls."""

from __future__ import annotations

from itertools import count, groupby
from types import ModuleType
from typing import Any

__all__ = ["names"]


class CUDAAllocator:
    """What ``torch.cuda.memory`` calls an allocator."""


def names(core: ModuleType) -> dict[str, Any]:
    """Return the names of ``torch._C`` that belong to memory."""

    def snapshot(*_: object) -> dict[str, Any]:
        segments = []
        for (device, address), blocks in groupby(core.memory_snapshot(), key=lambda block: (block[0], block[2])):
            segments.append(_segment(device, address, list(blocks)))
        return {"segments": segments, "device_traces": [], "allocator_settings": {}, "external_annotations": []}

    def begin_pool(device: int, pool: tuple[int, int]) -> None:
        core.share_pool(device, pool)
        core.begin_pool(device, pool)

    raw: dict[int, Any] = {}

    def allocate_raw(size: int, stream: int) -> int:
        import torch

        held = torch.empty(size, dtype=torch.uint8, device="cuda")
        raw[held.data_ptr()] = held
        return held.data_ptr()

    return {
        "_cuda_memoryStats": core.memory_stats,
        "_cuda_resetPeakMemoryStats": core.reset_peak,
        "_cuda_resetAccumulatedMemoryStats": core.reset_accumulated,
        "_cuda_emptyCache": core.empty_cache,
        "_cuda_setMemoryFraction": core.set_memory_fraction,
        "_cuda_getMemoryFraction": core.memory_fraction,
        "_cuda_memorySnapshot": snapshot,
        "_cuda_CUDAAllocator": CUDAAllocator,
        "_MemPool": _pool_class(core),
        "_cuda_beginAllocateToPool": begin_pool,
        "_cuda_beginAllocateCurrentThreadToPool": begin_pool,
        "_cuda_beginAllocateCurrentStreamToPool": begin_pool,
        "_cuda_checkPoolLiveAllocations": lambda *_: True,
        "_cuda_endAllocateToPool": core.end_pool,
        "_cuda_releasePool": core.leave_pool,
        "_cuda_cudaCachingAllocator_raw_alloc": allocate_raw,
        "_cuda_cudaCachingAllocator_raw_delete": raw.pop,
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_hostMemoryStats": dict,
        "_cuda_resetAccumulatedHostMemoryStats": _accept,
        "_cuda_resetPeakHostMemoryStats": _accept,
        "_host_emptyCache": _accept,
        "_cuda_attach_out_of_memory_observer": _accept,
        "_cuda_isHistoryEnabled": lambda: False,
        "_cuda_annotateMemory": _accept,
        "_cuda_memoryMetadataSupported": lambda: False,
        "_cuda_record_memory_history": _accept,
        "_cuda_record_memory_history_legacy": _accept,
        "_cuda_setMemoryMetadata": _accept,
        "_cuda_getMemoryMetadata": str,
        "_cuda_cudaCachingAllocator_set_allocator_settings": _accept,
        "_accelerator_setAllocatorSettings": _accept,
        "_cuda_cudaCachingAllocator_is_enabled": lambda: True,
        "_cuda_cudaCachingAllocator_enable": _accept,
        **_workspace_names(),
    }


def _pool_class(core: ModuleType) -> type:
    numbers = count(1)

    class MemPool:
        """A pool of a script's own, on the card that is current when it is made."""

        def __init__(self, allocator: Any = None, is_user_created: bool = True, *_: object, **__: object) -> None:
            self._allocator = allocator
            self._id = (0, next(numbers))
            self._device = core.current_device()
            core.share_pool(self._device, self._id)

        def __del__(self) -> None:
            core.leave_pool(self._device, self._id)

        @property
        def id(self) -> tuple[int, int]:
            return self._id

        @property
        def allocator(self) -> Any:
            return self._allocator

        @property
        def device(self) -> int:
            device: int = self._device
            return device

        def use_count(self) -> int:
            users: int = core.pool_users(self._device, self._id)
            return users

    return MemPool


def _workspace_names() -> dict[str, Any]:
    """Return the names that belong to cuBLAS's workspaces, which are not modelled."""
    return {
        "_cuda_getCublasWorkspaceSize": lambda: 0,
        "_cuda_setCublasWorkspaceSize": _accept,
        "_cuda_resetCublasWorkspaceSize": _accept,
        "_cuda_getCublasLtWorkspaceSize": lambda: 0,
        "_cuda_setCublasLtWorkspaceSize": _accept,
        "_cuda_resetCublasLtWorkspaceSize": _accept,
        "_cuda_clearCublasWorkspaces": _accept,
    }


def _accept(*_: object, **__: object) -> None:
    return None


def _segment(device: int, address: int, blocks: list[tuple[Any, ...]]) -> dict[str, Any]:
    sizes = [block[4] for block in blocks]
    used = [block[4] for block in blocks if block[6]]
    return {
        "device": device,
        "address": address,
        "total_size": sum(sizes),
        "allocated_size": sum(used),
        "active_size": sum(used),
        "requested_size": sum(block[5] for block in blocks if block[6]),
        "stream": blocks[0][1],
        "segment_type": "small" if blocks[0][7] else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": [
            {
                "address": block[3],
                "size": block[4],
                "requested_size": block[5],
                "state": "active_allocated" if block[6] else "inactive",
                "frames": [{"filename": block[8], "line": 0, "name": ""}],
            }
            for block in blocks
        ],
    }
