"""Host waits: numbers that the script reads from the card in every step, or copies to it in the midst of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from sandtable.check.cost import cost_text, saved_without, severity_of
from sandtable.check.relations import at_line
from sandtable.engine.timeline import Timeline
from sandtable.findings import Evidence, Finding, Severity
from sandtable.trace import Kind, Line, Phase, RankClass, RankView, SyncKind, Trace

__all__ = ["host_copy_in_loop", "host_read_in_loop"]

_KINDS = (SyncKind.ITEM, SyncKind.COPY, SyncKind.SHAPE, SyncKind.DEVICE)
_WORTH_A_WORD = 0.001
_TO_HOST = "copy::device_to_host"
_TO_CARD = "copy::host_to_device"

_FOR_THE_SCRIPT = ("torch/_tensor.py", "torch/_tensor_str.py", "torch/cuda/__init__.py", "torch/nn/utils/clip_grad.py")
"""Libraries' files that only do what the script wants: print a tensor, wait for the card, test a norm."""


def host_read_in_loop(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report lines at which every step waits for the card, if that costs time."""
    if timeline is None:
        return
    chosen = {
        row.representative: _in_every_step(trace, row, _is_read(trace.rank(row.representative)))
        for row in trace.classes
    }
    saved = _saved(trace, timeline, chosen)
    if saved:
        yield Finding(
            rule="host-read-in-loop",
            severity=severity_of(timeline, saved),
            message="a training step should not wait for the card, so that the host can issue work ahead, but reading "
            f"numbers from it costs {cost_text(timeline, saved)}",
            ranks=tuple(rank for rank, rows in chosen.items() if rows.any()),
            evidence=tuple(_evidence(trace, timeline, chosen)),
            remedy="keep such numbers on the card (loss.detach()) and read them every so many steps, all at once",
        )


def host_copy_in_loop(trace: Trace, timeline: Timeline | None) -> Iterator[Finding]:
    """Report lines in the midst of every step at which the host waits for a copy to the card, if that costs time."""
    if timeline is None:
        return
    chosen = {
        row.representative: _in_every_step(trace, row, _is_copy(trace.rank(row.representative)))
        for row in trace.classes
    }
    saved = _saved(trace, timeline, chosen)
    if saved:
        yield Finding(
            rule="host-copy-in-loop",
            severity=Severity.NOTE,
            message="what a step computes with should be on the card when it begins, but in the midst of each one the "
            "host makes tensors, copies them to the card and waits until it has done all work before, which costs "
            f"{cost_text(timeline, saved)}",
            ranks=tuple(rank for rank, rows in chosen.items() if rows.any()),
            evidence=tuple(_evidence(trace, timeline, chosen)),
            remedy="make them on the card (torch.arange(n, device=x.device)), or once, as a buffer of the module "
            "(register_buffer); or pin them and copy with non_blocking=True",
        )


def _saved(trace: Trace, timeline: Timeline, chosen: dict[int, npt.NDArray[np.bool_]]) -> float:
    """Return how many nanoseconds a step takes less without these waits; 0 if that is not worth a word."""
    if not any(rows.any() for rows in chosen.values()):
        return 0
    least = _WORTH_A_WORD * timeline.step_ns
    host_ns = max(timeline.breakdown(row.representative).host for row in trace.classes)
    if host_ns < least:
        return 0
    saved = saved_without(timeline, lambda row: chosen[row.representative], at_most=host_ns)
    return saved if saved >= least else 0


def _is_read(view: RankView) -> npt.NDArray[np.bool_]:
    """Return which records wait for numbers from the card."""
    records = view.records
    is_read = (records.kind == Kind.HOST_SYNC) & np.isin(records.value, _KINDS)
    return np.asarray(is_read & ((records.value != SyncKind.COPY) | _follows(view, _TO_HOST)))


def _is_copy(view: RankView) -> npt.NDArray[np.bool_]:
    """Return which records wait for a copy to the card that other work of the forward pass precedes."""
    records = view.records
    is_copy = (records.kind == Kind.HOST_SYNC) & (records.value == SyncKind.COPY) & (records.phase == Phase.FORWARD)
    rows = np.arange(len(records))
    begins = np.maximum.accumulate(np.where(records.phase != Phase.FORWARD, rows, -1))
    copies = [ref for ref in np.unique(records.ref[records.kind == Kind.OPERATOR]).tolist() if _is_to_card(view, ref)]
    is_work = (records.kind == Kind.OPERATOR) & (records.phase == Phase.FORWARD) & ~np.isin(records.ref, copies)
    last_work = np.maximum.accumulate(np.where(is_work, rows, -1))
    return np.asarray(is_copy & (last_work > begins) & _follows(view, _TO_CARD))


def _is_to_card(view: RankView, ref: int) -> bool:
    return view.signature(ref).name == _TO_CARD


def _in_every_step(trace: Trace, row: RankClass, is_read: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return which of these records the script makes at a line in every step but the first."""
    view = trace.rank(row.representative)
    records = view.records
    slices = view.step_slices()[1:]
    lines = [set(np.unique(records.line[rows][is_read[rows]]).tolist()) for rows in slices]
    if not lines:
        return np.zeros(len(records), dtype=np.bool_)
    needless = [line for line in set.intersection(*lines) if not _is_of_library(trace, row, view.line(line))]
    return np.asarray(is_read & np.isin(records.line, needless))


def _follows(view: RankView, name: str) -> npt.NDArray[np.bool_]:
    """Return for each record whether the operator before it is of this name."""
    records = view.records
    is_operator = records.kind == Kind.OPERATOR
    last = np.maximum.accumulate(np.where(is_operator, np.arange(len(records)), -1))
    refs = np.unique(records.ref[is_operator]).tolist()
    named = [ref for ref in refs if view.signature(ref).name == name]
    return np.asarray((last >= 0) & np.isin(records.ref[np.maximum(last, 0)], named))


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
