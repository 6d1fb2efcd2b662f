"""Checkpoints: saving and loading state when most ranks do not run, and when most values do not exist.

`torch.distributed.checkpoint` has the coordinator collect from every rank which shards it holds. A rank that does not
run is spoken for by another, so the coordinator would get one shard many times and miss the others. Here each plan is
sent in a form in which every rank of a kind sends the same: a shard is described as the whole tensor. The coordinator's
plan and metadata are then complete, and every rank writes its own shards. Of copies, the first rank that has one writes
it (`dedup_save_to_lowest_rank`). Shards are not found again when they are loaded: they are zeros, as are all large
values.

Zeros take no space: a large storage of zeros becomes a hole in the file that `torch.save` writes.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np

from sandtable.units import MIB

__all__ = ["adapt_checkpoints"]

_LARGE_BYTES = MIB
_PAGE_BYTES = 4096
_CHUNK_BYTES = 64 * MIB


def adapt_checkpoints(core: ModuleType) -> None:
    """Replace what saves and loads checkpoints in this process."""
    import torch
    from torch.distributed.checkpoint import default_planner
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.storage import StorageReader
    from torch.distributed.checkpoint.utils import _DistWrapper
    from torch.distributed.tensor import DTensor

    exchange = _Exchange()
    _DistWrapper.gather_object = exchange.gather_object(_DistWrapper.gather_object)  # type: ignore[method-assign]
    _DistWrapper.reduce_scatter = exchange.reduce_scatter(_DistWrapper.reduce_scatter)  # type: ignore[method-assign]
    _DistWrapper.all_reduce = exchange.all_reduce(_DistWrapper.all_reduce)  # type: ignore[method-assign]
    DTensor.__create_write_items__ = exchange.create_write_items(DTensor.__create_write_items__)  # type: ignore[method-assign]
    default_planner.dedup_save_plans = _to_lowest_rank(default_planner.dedup_save_plans)  # type: ignore[attr-defined]
    FileSystemReader.read_data = _read_known(core, FileSystemReader.read_data)  # type: ignore[method-assign]
    StorageReader.__init_subclass__ = _reads_known(core)  # type: ignore[method-assign]
    torch._C.PyTorchFileWriter = _hole_writer(torch._C.PyTorchFileWriter)  # type: ignore[misc]


class _Exchange:
    """What a rank sends of its plans and results, and what it makes of the answers."""

    def __init__(self) -> None:
        self._shards: set[Any] = set()
        """Indices of the shards in the plan that was made last."""
        self._copies: set[Any] = set()
        """Indices of shards that another rank has, too, and writes."""

    def create_write_items(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Remember which shards of this rank are copies."""

        @functools.wraps(original)
        def create(tensor: Any, fqn: str, value: Any) -> Any:
            items = original(tensor, fqn, value)
            coordinate = value.device_mesh.get_coordinate() or ()
            if any(at > 0 and how.is_replicate() for at, how in zip(coordinate, value.placements, strict=False)):
                self._copies.update(item.index for item in items)
            return items

        return create

    def gather_object(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Gather plans that nobody changes, and results, as Megatron-LM does."""
        from torch.distributed.checkpoint.planner import SavePlan

        @functools.wraps(original)
        def gather(wrapper: Any, sent: Any) -> Any:
            if isinstance(sent, SavePlan):
                self._note_shards(sent)
                return original(wrapper, _common_plan(sent))
            if not isinstance(sent, list):
                return original(wrapper, sent)
            gathered = original(wrapper, [self._common_result(result) for result in sent])
            return gathered and [list(_known(one)) if isinstance(one, list) else one for one in gathered]

        return gather

    def reduce_scatter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Exchange plans."""
        from torch.distributed.checkpoint.planner import LoadPlan, SavePlan

        @functools.wraps(original)
        def exchange(wrapper: Any, step: str, map_fun: Callable[[], Any], reduce_fun: Callable[..., Any]) -> Any:
            plans: list[Any] = []

            def send() -> Any:
                self._copies.clear()
                plans.append(map_fun())
                return _common_plan(plans[0]) if isinstance(plans[0], SavePlan | LoadPlan) else plans[0]

            answer = original(wrapper, step, send, reduce_fun)
            if not wrapper.use_dist or not isinstance(answer, SavePlan | LoadPlan):
                return answer
            items = plans[0].items
            if isinstance(answer, SavePlan):
                self._note_shards(plans[0])
                given = {item.index for item in answer.items} - self._shards
                items = [item for item in items if item.index in given | (self._shards - self._copies)]
            return replace(answer, items=items)

        return exchange

    def all_reduce(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Exchange the results of writing; those of shards only for their size."""

        @functools.wraps(original)
        def exchange(wrapper: Any, step: str, map_fun: Callable[[], Any], reduce_fun: Callable[..., Any]) -> Any:
            def send() -> Any:
                results = map_fun()
                return list(map(self._common_result, results)) if isinstance(results, list) else results

            def reduce(all_results: list[Any]) -> Any:
                return reduce_fun([list(_known(results)) for results in all_results])

            return (
                original(wrapper, step, send, reduce)
                if wrapper.use_dist
                else original(wrapper, step, map_fun, reduce_fun)
            )

        return exchange

    def _note_shards(self, plan: Any) -> None:
        from torch.distributed.checkpoint.planner import WriteItemType

        self._shards = {item.index for item in plan.items if item.type is WriteItemType.SHARD}

    def _common_result(self, result: Any) -> Any:
        from torch.distributed.checkpoint.storage import WriteResult

        if not isinstance(result, WriteResult) or result.index not in self._shards:
            return result
        return WriteResult(index=_common_index(result.index), size_in_bytes=0, storage_data=None)


def _known(results: Any) -> Iterator[Any]:
    return (result for result in results if getattr(result, "storage_data", result) is not None)


def _common_plan(plan: Any) -> Any:
    """Return the plan as every rank of a kind would send it: parts of one shard are the same whole tensor."""
    from torch.distributed.checkpoint.planner import SavePlan

    items = [_common_item(item) for item in plan.items]
    return replace(
        plan, items=list({item.index: item for item in items}.values()) if isinstance(plan, SavePlan) else items
    )


def _common_item(item: Any) -> Any:
    import torch
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
    from torch.distributed.checkpoint.planner import ReadItem, WriteItemType

    if isinstance(item, ReadItem):
        start = torch.Size([0] * len(item.lengths))
        return replace(
            item,
            dest_index=_common_index(item.dest_index),
            storage_index=_common_index(item.storage_index),
            dest_offsets=start,
            storage_offsets=start,
            lengths=start,
        )
    if item.type is not WriteItemType.SHARD:
        return item
    data = item.tensor_data
    whole = ChunkStorageMetadata(offsets=torch.Size([0] * len(data.size)), sizes=data.size)
    return replace(item, index=_common_index(item.index), tensor_data=replace(data, chunk=whole))


def _common_index(index: Any) -> Any:
    import torch

    return replace(index, offset=None if index.offset is None else torch.Size([0] * len(index.offset)), index=None)


def _to_lowest_rank(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def dedup_save_plans(all_plans: Any, save_to_lowest_rank: bool = False) -> Any:
        return original(all_plans, True)

    return dedup_save_plans


def _reads_known(core: ModuleType) -> Any:
    """Return the initialiser of classes that read checkpoints: those of a framework read as torch's do."""

    def adapt(kind: Any) -> None:
        if "read_data" in vars(kind):
            kind.read_data = _read_known(core, kind.read_data)

    return classmethod(adapt)


def _read_known(core: ModuleType, original: Callable[..., Any]) -> Callable[..., Any]:
    """Read what was written, and zeros for shards that were not, or that nobody can find again."""

    @functools.wraps(original)
    def read_data(reader: Any, plan: Any, planner: Any) -> Any:
        import torch

        known = [item for item in plan.items if item.storage_index in reader.storage_data]
        for item in plan.items:
            if item.storage_index not in reader.storage_data:
                core.note("zeros loaded", "shards that a rehearsal saved were loaded as zeros")
                target = planner.resolve_tensor(item).detach()
                target.copy_(torch.zeros(target.shape, dtype=target.dtype))
                planner.commit_tensor(item, target)
        return original(reader, replace(plan, items=known), planner)

    return read_data


def _hole_writer(original: Any) -> Any:
    """Return torch's writer of zip files, but one that leaves holes where a large storage is zero."""

    class HoleWriter(original):  # type: ignore[misc]
        def __init__(self, target: Any, *options: Any) -> None:
            stream = _seekable(target)
            self._can_seek = stream is not None
            if isinstance(target, str | os.PathLike):  # opened past Python, which would have raised the event
                sys.audit("open", target, "wb", os.O_WRONLY | os.O_CREAT)
            super().__init__(target if stream is None else stream, *options)

        def write_record(self, name: str, data: Any, size: int) -> None:
            is_storage = self._can_seek and size >= _LARGE_BYTES and hasattr(data, "data_ptr")
            if is_storage and _is_zero(data.data_ptr(), size):
                self.write_record_metadata(name, size)
            else:
                super().write_record(name, data, size)

    return HoleWriter


def _seekable(target: Any) -> Any:
    """Return the path or stream to write to if its position can be moved forward, else None."""
    if isinstance(target, str | os.PathLike) or target.seekable():
        return target
    raw = getattr(target, "raw", None)  # of a stream that `torch.distributed.checkpoint` keeps from being closed
    return raw if type(target).__name__ == "NoCloseWriter" and raw is not None and raw.seekable() else None


def _is_zero(address: int, size: int) -> bool:
    """Return whether this host memory is zero, without touching pages that nothing has touched."""
    with open("/proc/self/pagemap", "rb") as pages:
        for start in range(0, size, _CHUNK_BYTES):
            length = min(_CHUNK_BYTES, size - start)
            first = (address + start) // _PAGE_BYTES
            num_pages = (address + start + length - 1) // _PAGE_BYTES - first + 1
            pages.seek(first * 8)
            flags = np.frombuffer(pages.read(num_pages * 8), dtype=np.uint64)
            if not (flags >> np.uint64(62)).any():
                continue
            values = memoryview((ctypes.c_ubyte * length).from_address(address + start))
            if np.frombuffer(values, dtype=np.uint8).any():
                return False
    return True
