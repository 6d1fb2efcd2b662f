"""CaptureSummary: the figures of a trace that a terminal shows after a run, as plain data.

"Per step" means the last complete optimizer step, since the first one includes set-up. If a rank made no step,
everything it did counts as one. Totals are for the whole job: each class counts once per rank.
"""

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sandtable.trace.flops import flops
from sandtable.trace.kinds import Kind, SyncKind
from sandtable.trace.records import MemoryPeaks
from sandtable.trace.trace import Trace
from sandtable.trace.view import RankView

__all__ = ["CaptureSummary", "ClassSummary", "NoteSummary", "SyncPoint", "Traffic", "format_ranks", "summarise_trace"]

NUM_SYNC_POINTS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Calls of one collective on one of a rank's groups, in one step."""

    op: str
    group: int
    """The rank's own number of the group."""
    group_name: str
    group_size: int
    num_calls: int
    bytes_in: int
    bytes_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncPoint:
    """A line on which hosts wait for their device: `num_ranks` ranks do, the busiest of them `num_syncs` times."""

    kind: str
    file: str
    line: int
    function: str
    num_syncs: int
    num_ranks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteSummary:
    """A note of the capture with its script line."""

    kind: str
    text: str
    file: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassSummary:
    """One class of equal ranks; figures are per rank."""

    representative: int
    num_ranks: int
    ranks: str
    num_operators: int
    operators_per_step: int
    flops_per_step: int
    num_steps: int
    stop_reason: str
    traffic: tuple[Traffic, ...]
    memory: MemoryPeaks


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureSummary:
    """The figures of a run."""

    cluster: str
    world_size: int
    gpus_per_node: int
    num_groups: int
    num_steps: int
    captured_ranks: tuple[int, ...]
    operators_captured: int
    """Operators in the records of the representatives."""
    operators_total: int
    """Operators of the whole job: those of every rank."""
    flops_per_step: int
    """FLOPs of the whole job in one step."""
    classes: tuple[ClassSummary, ...]
    sync_points: tuple[SyncPoint, ...]
    """The busiest lines."""
    notes: tuple[NoteSummary, ...]
    wall_seconds: float
    core_seconds: float
    peak_rss_bytes: int

    @property
    def traffic(self) -> tuple[Traffic, ...]:
        """What the first class (that of rank 0) communicates in one step."""
        return self.classes[0].traffic if self.classes else ()

    def to_dict(self) -> dict[str, object]:
        """Return the same as dictionaries, lists, texts and numbers, ready for JSON."""
        plain: dict[str, object] = _plain(asdict(self) | {"traffic": [asdict(row) for row in self.traffic]})
        return plain


def summarise_trace(trace: Trace, *, step: int | None = None) -> CaptureSummary:
    """Read every class once and add up; figures of one step are those of number `step`, by default of the last."""
    costs = _Costs(trace)
    classes = tuple(_summarise_class(trace.rank(row.representative), costs, step=step) for row in trace.classes)
    return CaptureSummary(
        cluster=trace.cluster,
        world_size=trace.world_size,
        gpus_per_node=trace.gpus_per_node,
        num_groups=len(trace.groups),
        num_steps=trace.num_steps,
        captured_ranks=trace.captured_ranks,
        operators_captured=sum(row.num_operators for row in classes),
        operators_total=sum(row.num_operators * row.num_ranks for row in classes),
        flops_per_step=sum(row.flops_per_step * row.num_ranks for row in classes),
        classes=classes,
        sync_points=_sync_points(trace)[:NUM_SYNC_POINTS],
        notes=tuple(
            NoteSummary(kind=n.kind, text=n.text, file=trace.lines[n.line].file, line=trace.lines[n.line].line)
            for n in trace.notes
        ),
        wall_seconds=trace.wall_seconds,
        core_seconds=trace.core_seconds,
        peak_rss_bytes=trace.peak_rss_bytes,
    )


def format_ranks(ranks: tuple[int, ...], *, max_ranges: int = 4) -> str:
    """Format ranks as ranges, cut short: `0-7, 128-135, ... (192 ranks)`."""
    if not ranks:
        return "none"
    column = np.asarray(ranks)
    breaks = np.flatnonzero(np.diff(column) != 1)
    firsts = column[np.concatenate(([0], breaks + 1))].tolist()
    lasts = column[np.concatenate((breaks, [len(column) - 1]))].tolist()
    texts = [f"{first}" if first == last else f"{first}-{last}" for first, last in zip(firsts, lasts, strict=True)]
    if len(texts) <= max_ranges:
        return ", ".join(texts)
    return f"{', '.join(texts[: max_ranges - 1])}, ... ({len(ranks)} ranks)"


class _Costs:
    """FLOPs of the signatures of a trace, each computed once."""

    def __init__(self, trace: Trace) -> None:
        self._signatures = trace.signatures
        self._known: dict[int, int] = {}

    def total(self, view: RankView, rows: slice) -> int:
        operators = view.records.kind[rows] == Kind.OPERATOR
        refs, counts = np.unique(view.records.ref[rows][operators], return_counts=True)
        # Python integers: a step of a large model exceeds int64.
        return sum(count * self._of(ref) for ref, count in zip(refs.tolist(), counts.tolist(), strict=True))

    def _of(self, ref: int) -> int:
        if ref not in self._known:
            self._known[ref] = flops(self._signatures[ref])
        return self._known[ref]


def _summarise_class(view: RankView, costs: _Costs, *, step: int | None) -> ClassSummary:
    rank_class, rows = view.rank_class, view.step_slice(step)
    operators = view.records.kind == Kind.OPERATOR
    return ClassSummary(
        representative=rank_class.representative,
        num_ranks=rank_class.size,
        ranks=format_ranks(rank_class.ranks),
        num_operators=int(operators.sum()),
        operators_per_step=int(operators[rows].sum()),
        flops_per_step=costs.total(view, rows),
        num_steps=rank_class.records.num_steps,
        stop_reason=rank_class.records.stop_reason,
        traffic=_traffic(view, rows),
        memory=rank_class.records.memory,
    )


def _traffic(view: RankView, step: slice) -> tuple[Traffic, ...]:
    """Return rows by operator and group, most bytes first."""
    records, calls, names = view.records, view.calls, view.rank_class.records.call_ops
    rows = records.ref[step][records.kind[step] == Kind.COLLECTIVE]
    codes = calls.op[rows].astype(np.int64) << 32 | calls.group[rows]
    table = []
    for code in np.unique(codes).tolist():
        op, group = code >> 32, code & 0xFFFFFFFF
        chosen = rows[codes == code]
        own = view.group(group)
        table.append(
            Traffic(
                op=names[op],
                group=group,
                group_name=own.name,
                group_size=own.size,
                num_calls=len(chosen),
                bytes_in=int(calls.bytes_in[chosen].sum()),
                bytes_out=int(calls.bytes_out[chosen].sum()),
            )
        )
    return tuple(sorted(table, key=lambda row: (-max(row.bytes_in, row.bytes_out), row.op, row.group)))


def _sync_points(trace: Trace) -> tuple[SyncPoint, ...]:
    busiest: Counter[tuple[int, int]] = Counter()
    num_ranks: Counter[tuple[int, int]] = Counter()
    for rank_class in trace.classes:
        records = rank_class.records.records
        syncs = records.kind == Kind.HOST_SYNC
        counts = Counter(zip(records.value[syncs].tolist(), records.line[syncs].tolist(), strict=True))
        for point, count in counts.items():
            busiest[point] = max(busiest[point], count)
            num_ranks[point] += rank_class.size
    points = []
    for (kind, index), count in busiest.items():
        line, ranks = trace.lines[index], num_ranks[kind, index]
        name = SyncKind(kind).name.lower()
        points.append(
            SyncPoint(
                kind=name, file=line.file, line=line.line, function=line.function, num_syncs=count, num_ranks=ranks
            )
        )
    return tuple(sorted(points, key=lambda point: (-point.num_syncs, point.file, point.line, point.kind)))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
