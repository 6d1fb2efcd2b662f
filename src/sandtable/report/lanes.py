"""Lanes: the spans of a rank, few enough for a page to draw.

A step of a large model is tens of thousands of operators a rank, most of them too short to be seen. Neighbours on one
stream that belong together and are short are drawn as one, and the page says how many that stands for. What "short"
means is raised until everything fits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sandtable.report.needs import Span, Timeline

__all__ = ["Lanes", "lanes_of"]

MAX_SPANS = 30_000
CATEGORIES = ("compute", "communication", "copy", "wait")

I64 = npt.NDArray[np.int64]


class _Names:
    """Texts by number, each once."""

    def __init__(self) -> None:
        self.index: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self.index.setdefault(text, len(self.index))

    @property
    def texts(self) -> list[str]:
        return list(self.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """Everything the timeline of a page shows: columns for each rank, names beside them."""

    names: list[str]
    axes: list[str]
    lines: list[str]
    ranks: list[dict[str, Any]]
    num_spans: int
    num_drawn: int

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def lanes_of(timeline: Timeline, ranks: Sequence[int], *, max_spans: int = MAX_SPANS) -> Lanes:
    """The lanes of these ranks; together at most `max_spans` spans."""
    names, axes, lines = _Names(), _Names(), _Names()
    lines("")  # number 0: not known
    rows, total, drawn = [], 0, 0
    for rank in ranks:
        spans = timeline.spans(rank)
        columns = _merge(_columns(spans, timeline.step_start_ns, names, axes, lines), max_spans // len(ranks), names)
        total, drawn = total + len(spans), drawn + len(columns["start"])
        actor = timeline.actor_of(rank)
        streams = sorted(set(columns["stream"].tolist()), key=lambda stream: _order(columns, stream))
        rows.append(
            {"rank": rank, "num_ranks": len(actor.ranks), "streams": streams}
            | {name: column.tolist() for name, column in columns.items()}
        )
    return Lanes(
        names=names.texts, axes=axes.texts, lines=lines.texts, ranks=rows, num_spans=total, num_drawn=drawn
    )


def _columns(spans: Sequence[Span], begin_ns: int, names: _Names, axes: _Names, lines: _Names) -> dict[str, I64]:
    rows = [
        (
            span.start_ns - begin_ns,
            span.end_ns - span.start_ns,
            span.stream,
            names(span.name),
            CATEGORIES.index(span.category),
            int(span.phase),
            axes(span.axis),
            lines(str(span.line) if span.line.file else ""),
            span.bytes,
            span.flops,
            1,
        )
        for span in spans
    ]
    fields = ("start", "length", "stream", "name", "category", "phase", "axis", "line", "bytes", "flops", "count")
    table = np.array(rows, dtype=object).reshape(len(rows), len(fields))
    columns = {name: table[:, k].astype(np.float64 if name == "flops" else np.int64) for k, name in enumerate(fields)}
    order = np.lexsort((columns["start"], columns["stream"]))
    return {name: column[order] for name, column in columns.items()}


def _merge(columns: dict[str, I64], limit: int, names: _Names) -> dict[str, I64]:
    """Joins short neighbours of one kind until at most `limit` spans are left."""
    start, length = columns["start"], columns["length"]
    if len(start) <= limit:
        return columns
    kind = np.stack([columns[name] for name in ("stream", "category", "phase", "axis")])
    alike = (kind[:, 1:] == kind[:, :-1]).all(axis=0)
    gap = start[1:] - (start[:-1] + length[:-1])
    short = max(int(np.percentile(length, 10)), 1)
    while True:
        small = length <= short
        joined = alike & (gap <= short) & small[1:] & small[:-1]
        first = np.concatenate(([True], ~joined))
        if first.sum() <= limit or short > 1 << 60:
            break
        short *= 2
    return _joined(columns, np.flatnonzero(first), names)


def _joined(columns: dict[str, I64], first: I64, names: _Names) -> dict[str, I64]:
    end = columns["start"] + columns["length"]
    last = np.concatenate((first[1:], [len(end)])) - 1
    merged = {name: column[first] for name, column in columns.items()}
    merged["length"] = np.maximum.reduceat(end, first) - merged["start"]
    for name in ("bytes", "flops", "count"):
        merged[name] = np.add.reduceat(columns[name], first)
    several = last > first
    merged["name"] = np.where(several & ~_same(columns["name"], first, last), names("operators"), merged["name"])
    merged["line"] = np.where(several & ~_same(columns["line"], first, last), 0, merged["line"])
    return merged


def _same(column: I64, first: I64, last: I64) -> npt.NDArray[np.bool_]:
    """Whether a stretch holds one value only."""
    changes = np.concatenate(([0], np.cumsum(column[1:] != column[:-1])))
    same: npt.NDArray[np.bool_] = changes[first] == changes[last]
    return same


def _order(columns: dict[str, I64], stream: int) -> tuple[int, int]:
    """Compute above communication: the stream with the most compute first."""
    mine = columns["stream"] == stream
    busy = columns["length"][mine & (columns["category"] == 0)].sum()
    return -int(busy), stream
