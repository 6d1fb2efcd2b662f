"""Overlap: gradients should be reduced while the backward pass still computes others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sandtable.check.cost import cost_text, severity_of
from sandtable.check.relations import at_line
from sandtable.engine.timeline import Timeline
from sandtable.findings import Evidence, Finding
from sandtable.trace import Collective, EventKind, Kind, Line, Phase, RankView, Trace
from sandtable.units import format_bytes

__all__ = ["tiny_collectives", "unoverlapped_buckets"]

_REDUCING = ("all_reduce", "reduce_scatter")
_LEAST_BYTES = 64 << 20
"""Two and a half of DDP's usual buckets: of fewer gradients, most cannot be overlapped."""

_LATE = 0.9
_EXPOSED = 0.02
_MANY = 24
_MANY_IN_A_ROW = 8
"""Fewer, if nothing is computed between them that could hide them."""
_FEW_OPERATORS = 4
_TINY_BYTES = 256 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reductions:
    """What a step reduces on one axis."""

    calls: tuple[Collective, ...]
    late: tuple[Collective, ...]
    """Those issued when nine tenths of the backward pass had been."""

    @property
    def num_bytes(self) -> int:
        return sum(call.bytes_in for call in self.calls)

    @property
    def late_bytes(self) -> int:
        return sum(call.bytes_in for call in self.late)


def unoverlapped_buckets(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report gradients of which nearly all are reduced at the end of the backward pass or after it."""
    if timeline is None:
        return
    for row in trace.classes[:1]:
        view = trace.rank(row.representative)
        part = timeline.breakdown(row.representative)
        reductions = _reductions(view, timeline)
        if reductions.num_bytes < _LEAST_BYTES or reductions.late_bytes < _LATE * reductions.num_bytes:
            continue
        exposed = max(part.communication.values(), default=0)
        saved = min(exposed * reductions.late_bytes / reductions.num_bytes, part.backward)
        if saved < _EXPOSED * timeline.step_ns:
            continue
        counts = Counter(call.line for call in reductions.late)
        yield Finding(
            rule="unoverlapped-buckets",
            severity=severity_of(timeline, saved),
            message=f"gradients should be reduced while the backward pass still runs, but "
            f"{format_bytes(reductions.late_bytes)} of {format_bytes(reductions.num_bytes)} are reduced at its end; "
            f"overlap would save up to {cost_text(timeline, saved)}",
            ranks=row.ranks,
            evidence=(*_evidence(row.ranks, counts, reductions), *_wrappings(trace, row.representative)),
            remedy="let DistributedDataParallel reduce, in buckets of its usual size (bucket_cap_mb=25); with FSDP, "
            "shard each layer by itself before the whole model; with ZeRO, set overlap_comm and a smaller "
            "reduce_bucket_size",
        )


def tiny_collectives(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report lines that issue many small collectives in each step, which one large one could replace."""
    if timeline is None:
        return
    for row in trace.classes[:1]:
        view = trace.rank(row.representative)
        calls = list(view.collectives(view.step_slice(timeline.step_number)))
        alone = {(one.op, one.size_bytes): one.alone_ns for one in timeline.transactions(row.representative)}
        by_line: dict[tuple[str, Line], list[Collective]] = {}
        for call in calls:
            if call.peer is None and call.line.file and call.phase is not Phase.RECOMPUTE:
                by_line.setdefault((call.op, call.line), []).append(call)
        for (op, place), same in by_line.items():
            sizes = [max(call.bytes_in, call.bytes_out) for call in same]
            least = _MANY_IN_A_ROW if _is_in_a_row(view, same) else _MANY
            if len(same) < least or np.median(sizes) > _TINY_BYTES or op == "barrier":
                continue
            costs = [alone.get((op, size), 0.0) for size in sizes]
            saved = sum(costs) - max(costs)
            yield Finding(
                rule="tiny-collectives",
                severity=severity_of(timeline, saved),
                message=f"a collective takes some time however little it moves, but each step makes {len(same)} calls "
                f"of {op} with {format_bytes(int(np.median(sizes)))} each, which take {cost_text(timeline, saved)}",
                ranks=row.ranks,
                evidence=(at_line(row.ranks, f"calls {op} {len(same)} times per step", place),),
                remedy="put the tensors into one buffer first (torch._utils._flatten_dense_tensors), or issue them in "
                "one batch (dist._coalescing_manager); for gradients, use DistributedDataParallel",
            )


def _is_in_a_row(view: RankView, calls: list[Collective]) -> bool:
    """Return whether hardly anything is computed between these calls."""
    between = view.records.kind[calls[0].index : calls[-1].index]
    return int((between == Kind.OPERATOR).sum()) <= _FEW_OPERATORS * len(calls)


def _reductions(view: RankView, timeline: Timeline) -> _Reductions:
    """Return the reductions of gradients in a step: those that begin in its backward passes or follow them."""
    span = view.step_slice(timeline.step_number)
    records = view.records
    rows = np.flatnonzero((records.kind[span] == Kind.OPERATOR) & (records.phase[span] == Phase.BACKWARD))
    rows += span.start or 0
    if not len(rows):
        return _Reductions(calls=(), late=())
    # Work counts, not operators: DDP copies gradients into and out of buckets.
    work = np.cumsum(timeline.tables[timeline.actor_of(view.rank).index].costs.work_ns[records.ref[rows]])
    begin, late = int(rows[0]), int(rows[np.searchsorted(work, _LATE * work[-1])])
    calls = tuple(
        call
        for call in view.collectives(span)
        if call.op in _REDUCING and call.index > begin and len(call.group.ranks) > 1
    )
    return _Reductions(calls=calls, late=tuple(call for call in calls if call.index >= late))


def _wrappings(trace: Trace, rank: int) -> Iterator[Evidence]:
    """Yield where DDP was told how large its buckets are."""
    seen = trace.observations.get(rank)
    for event in seen.of_kind(EventKind.WRAPPED) if seen is not None else ():
        yield at_line((rank,), "wraps the model", event.place)


def _evidence(ranks: tuple[int, ...], counts: Counter[Line], reductions: _Reductions) -> Iterator[Evidence]:
    for place, count in counts.most_common(3):
        size = sum(call.bytes_in for call in reductions.late if call.line == place)
        times = "one call" if count == 1 else f"{count} calls"
        yield at_line(ranks, f"reduces {format_bytes(size)} in {times}", place)
