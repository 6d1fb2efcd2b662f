"""Host reads: numbers that the script reads from the card in every step, so that the host cannot issue work ahead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from sandtable.check.cost import cost_text, saved_without, severity_of
from sandtable.check.relations import at_line
from sandtable.engine.timeline import Timeline
from sandtable.findings import Evidence, Finding
from sandtable.trace import Kind, Line, RankClass, RankView, SyncKind, Trace

__all__ = ["host_read_in_loop"]

_KINDS = (SyncKind.ITEM, SyncKind.COPY, SyncKind.SHAPE, SyncKind.DEVICE)
_WORTH_A_WORD = 0.01
_MANY = 3
_MANY_WORTH_A_WORD = 0.001
_TO_HOST = "copy::device_to_host"

_FOR_THE_SCRIPT = ("torch/_tensor.py", "torch/_tensor_str.py", "torch/cuda/__init__.py")
"""Libraries' files that only do what the script wants: print a tensor, wait for the card."""


def host_read_in_loop(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report lines at which every step waits for the card, if that costs time."""
    if timeline is None:
        return
    chosen = {row.representative: _reads(trace, row) for row in trace.classes}
    if not any(rows.any() for rows in chosen.values()):
        return
    steps = max(len(trace.rank(rank).step_slices()) for rank in chosen)
    is_often = max(int(rows.sum()) for rows in chosen.values()) >= _MANY * steps
    least = (_MANY_WORTH_A_WORD if is_often else _WORTH_A_WORD) * timeline.step_ns
    host_ns = max(timeline.breakdown(row.representative).host for row in trace.classes)
    if host_ns < least:
        return
    saved = saved_without(timeline, lambda row: chosen[row.representative], at_most=host_ns)
    if saved < least:
        return
    yield Finding(
        rule="host-read-in-loop",
        severity=severity_of(timeline, saved),
        message="a training step should not wait for the card, so that the host can issue work ahead, but reading "
        f"numbers from it costs {cost_text(timeline, saved)}",
        ranks=tuple(rank for rank, rows in chosen.items() if rows.any()),
        evidence=tuple(_evidence(trace, timeline, chosen)),
        remedy="keep such numbers on the card (loss.detach()) and read them every so many steps, all at once",
    )


def _reads(trace: Trace, row: RankClass) -> npt.NDArray[np.bool_]:
    """Return which records are reads that the script makes at a line in every step but the first."""
    view = trace.rank(row.representative)
    records = view.records
    is_read = (records.kind == Kind.HOST_SYNC) & np.isin(records.value, _KINDS)
    is_read &= (records.value != SyncKind.COPY) | _follows_read(view)
    slices = view.step_slices()[1:]
    lines = [set(np.unique(records.line[rows][is_read[rows]]).tolist()) for rows in slices]
    if not lines:
        return np.zeros(len(records), dtype=np.bool_)
    needless = [line for line in set.intersection(*lines) if not _is_of_library(trace, row, view.line(line))]
    return np.asarray(is_read & np.isin(records.line, needless))


def _follows_read(view: RankView) -> npt.NDArray[np.bool_]:
    """Return for each record whether the operator before it copies from the card."""
    records = view.records
    is_operator = records.kind == Kind.OPERATOR
    last = np.maximum.accumulate(np.where(is_operator, np.arange(len(records)), -1))
    refs = np.unique(records.ref[is_operator]).tolist()
    to_host = [ref for ref in refs if view.signature(ref).name == _TO_HOST]
    return np.asarray((last >= 0) & np.isin(records.ref[np.maximum(last, 0)], to_host))


def _is_of_library(trace: Trace, row: RankClass, place: Line) -> bool:
    """Return whether a library reads at this line for its own purposes, as GradScaler does."""
    seen = next((trace.observations[rank] for rank in row.ranks if rank in trace.observations), None)
    libraries = [read.library for read in seen.host_reads if read.place == place] if seen is not None else []
    return bool(libraries) and all(file and not file.endswith(_FOR_THE_SCRIPT) for file in libraries)


def _evidence(trace: Trace, timeline: Timeline, chosen: dict[int, npt.NDArray[np.bool_]]) -> Iterator[Evidence]:
    seen: set[int] = set()
    for rank, rows in chosen.items():
        view = trace.rank(rank)
        step = view.step_slice(timeline.step_number)
        counts = Counter(view.records.line[step][rows[step]].tolist())
        for line, count in counts.most_common():
            if line not in seen:
                seen.add(line)
                place = view.line(line)
                times = "once" if count == 1 else f"{count} times"
                yield at_line(view.rank_class.ranks, f"waits for the card {times} per step", place)
