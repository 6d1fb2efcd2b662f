"""Caches: the allocator's, which the script empties in the loop or which does not fit what the script asks of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sandtable.check.cost import cost_text, severity_of
from sandtable.check.relations import at_line
from sandtable.engine.timeline import Timeline
from sandtable.findings import Evidence, Finding, Severity
from sandtable.trace import Kind, Line, MemoryPeaks, RankView, Trace
from sandtable.units import format_bytes

__all__ = ["empty_cache_in_loop", "fragmentation"]

_SEGMENT_NS = 500_000
"""To give a segment back and request it again: cudaFree waits for the card, cudaMalloc maps memory. An assumption."""

_WASTED_SHARE = 0.2
_WASTED_OF_CARD = 0.05


def empty_cache_in_loop(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report `torch.cuda.empty_cache()` in every step, with the memory that is requested again."""
    places: dict[Line, list[int]] = {}
    for rank, seen in trace.observations.items():
        for place in {flush.place for flush in seen.cache_flushes}:
            steps = {flush.step for flush in seen.cache_flushes if flush.place == place}
            # Setting up and taking down are no steps, and may empty the cache, too.
            if trace.num_steps > 1 and len(steps) > 1 and steps.issuperset(range(1, trace.num_steps)):
                places.setdefault(place, []).append(rank)
    for place, ranks in places.items():
        num_segments, num_bytes = _returned_per_step(trace.rank(ranks[0]))
        saved = num_segments * _SEGMENT_NS
        cost = f", about {cost_text(timeline, saved)}" if timeline is not None and saved else ""
        yield Finding(
            rule="empty-cache-in-loop",
            severity=Severity.NOTE if timeline is None else severity_of(timeline, saved),
            message="memory that the next step needs again should stay with the allocator, but the script returns it "
            f"to the card in every step{cost}",
            ranks=tuple(ranks),
            evidence=(
                at_line(
                    ranks,
                    f"returns {num_segments} segments ({format_bytes(num_bytes)}) per step, which are requested again"
                    if num_segments
                    else "empties the cache in every step",
                    place,
                ),
            ),
            remedy="remove torch.cuda.empty_cache() from the loop: it frees nothing that tensors hold; if memory is "
            "fragmented, set PYTORCH_ALLOC_CONF=expandable_segments:True",
        )


def fragmentation(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report memory that the allocator has reserved but cannot use when most is needed, for the worst of all ranks."""
    views = [trace.rank(row.representative) for row in trace.classes]
    wasteful = [view for view in views if _is_wasteful(view.memory)]
    if not wasteful:
        return
    worst = max(wasteful, key=lambda view: _wasted_bytes(view.memory))
    memory = worst.memory
    is_tight = any(view.memory.reserved_bytes > (1 - _WASTED_SHARE) * view.memory.capacity_bytes for view in wasteful)
    yield Finding(
        rule="fragmentation",
        severity=Severity.WARNING if is_tight else Severity.NOTE,
        message="what the allocator reserves should be what tensors need, but of "
        f"{format_bytes(memory.reserved_bytes)} reserved on rank {worst.rank} at most "
        f"{format_bytes(memory.allocated_bytes)} are in use",
        ranks=tuple(sorted(rank for view in wasteful for rank in view.rank_class.ranks)),
        evidence=tuple(_requests(worst)),
        remedy="set PYTORCH_ALLOC_CONF=expandable_segments:True, or pad batches to a few sizes",
    )


def _is_wasteful(memory: MemoryPeaks) -> bool:
    least = max(_WASTED_SHARE * memory.reserved_bytes, _WASTED_OF_CARD * memory.capacity_bytes)
    return memory.capacity_bytes > 0 and _wasted_bytes(memory) >= least


def _wasted_bytes(memory: MemoryPeaks) -> int:
    return memory.reserved_bytes - memory.allocated_bytes


def _returned_per_step(view: RankView) -> tuple[int, int]:
    """Return how many segments, and bytes, one step gives back to the card: the least of all steps but the first."""
    records = view.records
    freed = [
        records.value[rows][records.kind[rows] == Kind.SEGMENT_FREE]
        for rows in view.step_slices()[1:] or (slice(0, 0),)
    ]
    return min(len(values) for values in freed), min(int(values.sum()) for values in freed)


def _requests(view: RankView) -> Iterator[Evidence]:
    """Yield the lines whose tensors made the allocator request most memory."""
    records = view.records
    segments = np.flatnonzero(records.kind == Kind.SEGMENT_ALLOC)
    allocations = np.flatnonzero(records.kind == Kind.ALLOC)
    if not len(segments) or not len(allocations):
        return
    following = np.minimum(np.searchsorted(allocations, segments), len(allocations) - 1)
    lines = records.line[allocations[following]]
    totals = np.bincount(lines, weights=records.value[segments].astype(np.float64))
    for line in np.argsort(-totals, kind="stable")[:3].tolist():
        if totals[line] > 0:
            place = view.line(line)
            sizes = len(np.unique(records.value[allocations[records.line[allocations] == line]]))
            needed = format_bytes(int(totals[line]))
            yield at_line(view.rank_class.ranks, f"needs {needed} of new segments, for tensors of {sizes} sizes", place)
