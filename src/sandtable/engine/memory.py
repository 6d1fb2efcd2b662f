"""Memory: what fills the card, by category, over time. `blocks.py` determines what a block holds."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sandtable.engine.blocks import Blocks, Category, classify_blocks
from sandtable.trace.kinds import Kind
from sandtable.trace.view import RankView

__all__ = ["Blocks", "Category", "MemoryCurve", "MemoryUse", "classify_blocks", "memory_curve", "memory_use"]

Rows = npt.NDArray[np.int64]

MAX_POINTS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCurve:
    """Bytes after certain records: one row of `bytes_by_category` per point, columns in the order of `Category`."""

    row: Rows
    bytes_by_category: Rows
    reserved_bytes: Rows

    @property
    def allocated_bytes(self) -> Rows:
        total: Rows = self.bytes_by_category.sum(axis=1)
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """One rank's memory when most was allocated; `fragmentation_bytes` are reserved but not in use.

    `host_bytes` are in host memory: offloaded states and pinned buffers.
    """

    bytes_by_category: dict[str, int]
    allocated_bytes: int
    reserved_bytes: int
    fragmentation_bytes: int
    peak_reserved_bytes: int
    capacity_bytes: int
    num_ooms: int
    host_bytes: int = 0


def memory_use(view: RankView, blocks: Blocks | None = None) -> MemoryUse:
    """Return what the card holds at its fullest moment."""
    blocks = blocks or classify_blocks(view)
    rows, allocated = view.memory_timeline()
    peak = rows[allocated.argmax()] if len(rows) else np.int64(-1)
    alive = (blocks.allocated_row <= peak) & (blocks.freed_row > peak)
    bytes_of = [int(blocks.size_bytes[alive & (blocks.category == category)].sum()) for category in Category]
    reserved = int(_reserved(view, np.array([peak]))[0])
    return MemoryUse(
        bytes_by_category={category.name.lower(): bytes_of[category] for category in Category},
        allocated_bytes=sum(bytes_of),
        reserved_bytes=reserved,
        fragmentation_bytes=max(reserved - sum(bytes_of), 0),
        peak_reserved_bytes=view.memory.reserved_bytes,
        capacity_bytes=view.memory.capacity_bytes,
        num_ooms=view.memory.num_ooms,
        host_bytes=view.memory.host_bytes,
    )


def memory_curve(
    view: RankView, blocks: Blocks | None = None, *, rows: slice = slice(None), max_points: int | None = MAX_POINTS
) -> MemoryCurve:
    """Return bytes by category after each record that changed them, of all records or of a slice such as one step.

    More than `max_points` points are thinned: of each stretch its first and its highest point stay.
    """
    blocks = blocks or classify_blocks(view)
    records = view.records
    start, stop, _ = rows.indices(len(records))
    freed = blocks.freed_row < len(records)
    row = np.concatenate((blocks.allocated_row, blocks.freed_row[freed]))
    change = np.concatenate((blocks.size_bytes, -blocks.size_bytes[freed]))
    category = np.concatenate((blocks.category, blocks.category[freed]))
    order = np.argsort(row, kind="stable")
    row, change, category = row[order], change[order], category[order]
    table = np.zeros((len(row), len(Category)), dtype=np.int64)
    table[np.arange(len(row)), category] = change
    table = table.cumsum(axis=0)
    low, high = np.searchsorted(row, (start, stop))
    # The first point is what is held when the slice begins.
    first = table[low - 1 : low] if low else np.zeros((1, len(Category)), dtype=np.int64)
    row = np.concatenate(([start], row[low:high]))
    table = np.concatenate((first, table[low:high]))
    kept = _thin(table.sum(axis=1), max_points)
    return MemoryCurve(
        row=row[kept], bytes_by_category=table[kept], reserved_bytes=_reserved(view, row[kept]).astype(np.int64)
    )


def _reserved(view: RankView, rows: Rows) -> Rows:
    """Return the bytes that the allocator has reserved on the card after each of these records."""
    kind, value = view.records.kind, view.records.value
    index = np.flatnonzero((kind == Kind.SEGMENT_ALLOC) | (kind == Kind.SEGMENT_FREE))
    total = np.concatenate(([0], np.cumsum(np.where(kind[index] == Kind.SEGMENT_ALLOC, value[index], -value[index]))))
    reserved: Rows = total[np.searchsorted(index, rows, side="right")]
    return reserved


def _thin(heights: Rows, max_points: int | None) -> Rows:
    """Return the indices to keep: all, or the first and highest of `max_points / 2` equal stretches, and the last."""
    num = len(heights)
    if max_points is None or num <= max_points:
        return np.arange(num)
    bounds = np.linspace(0, num, max_points // 2, dtype=np.int64)[:-1]
    owner = np.searchsorted(bounds, np.arange(num), side="right")
    highest = np.lexsort((-heights, owner))[np.searchsorted(np.sort(owner), np.arange(1, len(bounds) + 1))]
    return np.unique(np.concatenate((bounds, highest, [num - 1])))
