"""Tracks: the spans of chosen ranks, one track per stream, few enough for a page to draw.

A step of a large model is tens of thousands of operators per rank, most of them too short to be seen. Short neighbours
on one stream that belong together are drawn as one span, and the page shows how many it stands for. The limit of
"short" is raised until everything fits.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from sandtable.engine.columns import SpanColumns
from sandtable.engine.timeline import Timeline

__all__ = ["RankTracks", "Track", "Tracks", "tracks_of"]

MAX_SPANS = 64_000
_COARSEST = 1000
"""Spans shorter than this fraction of the step are joined before spans of different kinds are."""
_GROWTH = 1.3
_JOINED = ("operators", "calls", "copies", "waits")
_KIND = ("name", "category", "phase", "axis", "line", "bytes", "flops", "count")

I64 = npt.NDArray[np.int64]
Item = TypeVar("Item", bound=Hashable)


class _Numbers(Generic[Item]):
    """Numbers items in the order in which they first appear."""

    def __init__(self) -> None:
        self.index: dict[Item, int] = {}

    def __call__(self, item: Item) -> int:
        return self.index.setdefault(item, len(self.index))

    @property
    def items(self) -> list[Item]:
        return list(self.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """The spans of one stream as columns: the gap before each, its length (both in ns), and its row in `kinds`."""

    stream: int
    gap: list[int]
    length: list[int]
    kind: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTracks:
    """The tracks of one rank, the one with the most compute first; `num_ranks` ranks have equal times."""

    rank: int
    num_ranks: int
    tracks: list[Track]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracks:
    """Everything the timeline of a page shows.

    A training loop repeats itself, so what a span *is* is kept once, as a row of `kinds`: name, category, phase, axis,
    line, bytes, FLOPs, and how many spans are joined in it.
    """

    names: list[str]
    axes: list[str]
    lines: list[str]
    kinds: list[tuple[int, ...]]
    ranks: list[RankTracks]
    num_spans: int
    num_drawn: int


class _Tables:
    """The tables that all ranks share."""

    def __init__(self) -> None:
        self.names, self.axes, self.lines = _Numbers[str](), _Numbers[str](), _Numbers[str]()
        self.kinds = _Numbers[tuple[int, ...]]()
        self.lines("")  # number 0: not known


def tracks_of(timeline: Timeline, ranks: Sequence[int], *, max_spans: int = MAX_SPANS) -> Tracks:
    """Return the tracks of these ranks, together at most `max_spans` spans."""
    tables = _Tables()
    rows, total, drawn = [], 0, 0
    for rank in ranks:
        spans = timeline.span_columns(rank)
        columns = _merge(_columns(spans, timeline, tables), max_spans // len(ranks), tables)
        total, drawn = total + len(spans), drawn + len(columns["start"])
        num_ranks = len(timeline.actor_of(rank).ranks)
        rows.append(RankTracks(rank=rank, num_ranks=num_ranks, tracks=_tracks(columns, tables)))
    return Tracks(
        names=tables.names.items,
        axes=tables.axes.items,
        lines=tables.lines.items,
        kinds=tables.kinds.items,
        ranks=rows,
        num_spans=total,
        num_drawn=drawn,
    )


def _columns(spans: SpanColumns, timeline: Timeline, tables: _Tables) -> dict[str, I64]:
    """Return the spans sorted by stream, then by start, with names, axes and lines as indices into shared tables."""
    names = np.array([tables.names(name) for name in spans.names] or [0])
    axes = np.array([tables.axes(axis) for axis in spans.axes] or [0])
    used, line = np.unique(spans.line, return_inverse=True)
    known = (timeline.trace.lines[int(index)] for index in used)
    lines = np.array([tables.lines(str(place) if place.file else "") for place in known] or [0])
    return {
        "start": spans.start_ns - timeline.step_start_ns,
        "length": spans.end_ns - spans.start_ns,
        "stream": spans.stream,
        "name": names[spans.name],
        "category": spans.category,
        "phase": spans.phase,
        "axis": axes[spans.axis],
        "line": lines[line.reshape(-1)],
        "bytes": spans.bytes,
        "flops": spans.flops.astype(np.int64),
        "count": np.ones(len(spans), dtype=np.int64),
    }


def _tracks(columns: dict[str, I64], tables: _Tables) -> list[Track]:
    """Return one track per stream, the stream with the most compute first."""
    kinds = list(map(tables.kinds, zip(*(columns[name].tolist() for name in _KIND), strict=True)))
    ordered = []
    for stream in np.unique(columns["stream"]).tolist():
        low, high = np.searchsorted(columns["stream"], (stream, stream + 1))
        start, length = columns["start"][low:high], columns["length"][low:high]
        gaps = np.diff(start + length, prepend=0) - length
        busy = int(length[columns["category"][low:high] == 0].sum())
        track = Track(stream=stream, gap=gaps.tolist(), length=length.tolist(), kind=kinds[low:high])
        ordered.append((-busy, stream, track))
    return [track for _, _, track in sorted(ordered, key=lambda entry: entry[:2])]


def _merge(columns: dict[str, I64], limit: int, tables: _Tables) -> dict[str, I64]:
    """Join short neighbours until at most `limit` spans are left: first those of one kind, in the end any."""
    start, length = columns["start"], columns["length"]
    if len(start) <= limit:
        return columns
    gap = start[1:] - (start[:-1] + length[:-1])
    one_stream = columns["stream"][1:] == columns["stream"][:-1]
    kind = np.stack([columns[name] for name in ("category", "phase", "axis")])
    alike = one_stream & (kind[:, 1:] == kind[:, :-1]).all(axis=0)
    longest = max(int((start + length).max()) // _COARSEST, 2)
    joined = np.zeros(len(gap), dtype=np.bool_)
    for may_join, most in ((alike, longest), (one_stream, 1 << 62)):
        short, before = max(float(np.percentile(length, 5)), 1.0), joined
        while len(start) - joined.sum() > limit and short < most:
            joined = before | (may_join & (gap <= short) & (length[1:] <= short) & (length[:-1] <= short))
            short *= _GROWTH
    first = np.concatenate(([True], ~joined))
    return _joined(columns, np.flatnonzero(first), tables)


def _joined(columns: dict[str, I64], first: I64, tables: _Tables) -> dict[str, I64]:
    """Return one span per stretch: as long as the whole stretch, of the kind that takes most of it."""
    end = columns["start"] + columns["length"]
    last = np.concatenate((first[1:], [len(end)])) - 1
    stretch = np.repeat(np.arange(len(first)), last - first + 1)
    longest = np.lexsort((columns["length"], stretch))[last]
    merged = {name: column[longest] for name, column in columns.items()}
    merged["start"] = columns["start"][first]
    merged["length"] = np.maximum.reduceat(end, first) - merged["start"]
    for name in ("bytes", "flops", "count"):
        merged[name] = np.add.reduceat(columns[name], first)
    several = last > first
    joined = np.array([tables.names(name) for name in _JOINED])[merged["category"]]
    merged["name"] = np.where(several & ~_same(columns["name"], first, last), joined, merged["name"])
    merged["line"] = np.where(several & ~_same(columns["line"], first, last), 0, merged["line"])
    return merged


def _same(column: I64, first: I64, last: I64) -> npt.NDArray[np.bool_]:
    """Return whether each stretch holds one value only."""
    changes = np.concatenate(([0], np.cumsum(column[1:] != column[:-1])))
    same: npt.NDArray[np.bool_] = changes[first] == changes[last]
    return same
