"""Spans: the instructions of one rank rolled out again into single operators and calls, with their times."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sandtable.engine.clock import Times
from sandtable.engine.operators import OperatorTable
from sandtable.engine.program import Order, Program
from sandtable.trace import Kind, Line, Phase, RankView

__all__ = ["Span", "unroll"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Something that takes time on one stream of a device."""

    start_ns: int
    end_ns: int
    stream: int
    name: str
    category: str
    """`compute`, `communication`, `copy`, or `wait` (a call whose other members have not come yet)."""
    phase: Phase
    line: Line
    axis: str = ""
    bytes: int = 0
    flops: int = 0


def unroll(
    view: RankView,
    program: Program,
    times: Times,
    table: OperatorTable,
    axes: tuple[str, ...],
    window: tuple[int, int],
) -> list[Span]:
    """The spans of `view` that touch the window, in order of start."""
    touches = (times.end_ns > window[0]) & (times.start_ns < window[1]) & (times.start_ns >= 0)
    spans: list[Span] = []
    for pc in np.flatnonzero(touches & (program.kind == Order.RUN)).tolist():
        spans.extend(_operators(view, program, times, table, pc))
    for pc in np.flatnonzero(touches & (program.kind == Order.CALL)).tolist():
        spans.extend(_call(view, program, times, axes, pc))
    return sorted(spans, key=lambda span: (span.start_ns, span.stream, span.end_ns))


def _operators(view: RankView, program: Program, times: Times, table: OperatorTable, pc: int) -> list[Span]:
    """The operators of one run, each as long as it takes; stretched evenly where something slowed the run down."""
    rows = np.arange(int(program.first_record[pc]), int(program.last_record[pc]) + 1)
    rows = rows[view.records.kind[rows] == Kind.OPERATOR]
    refs = view.records.ref[rows].astype(np.int64)
    starts, ends = _within_run(table, refs, view.records.phase[rows], times, pc)
    stream = int(program.stream_ids[program.stream[pc]])
    category = "copy" if program.is_copy[pc] else "compute"
    return [
        Span(
            start_ns=int(start),
            end_ns=int(end),
            stream=stream,
            name=view.signature(int(ref)).op,
            category=category,
            phase=Phase(int(phase)),
            line=view.line(int(line)),
            bytes=int(table.bytes_moved[ref]),
            flops=int(table.flops[ref]),
        )
        for start, end, ref, phase, line in zip(
            starts, ends, refs, view.records.phase[rows], view.records.line[rows], strict=True
        )
        if end > start
    ]


def _within_run(
    table: OperatorTable, refs: npt.NDArray[np.int64], phases: npt.NDArray[np.uint8], times: Times, pc: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    costs = table.costs
    work = costs.work_ns[refs]
    ready = times.issue_ns[pc] + np.cumsum(costs.host_ns[phases, refs]) + costs.launch_latency_ns
    begin, end = float(times.start_ns[pc]), float(times.end_ns[pc])
    # end_j = max over i <= j of (ready_i + work_i + ... + work_j), and never before the stream is free
    done = np.cumsum(work)
    ends = done + np.maximum.accumulate(np.maximum(ready, begin) - (done - work))
    starts = ends - work
    length = ends[-1] - begin
    stretch = (end - begin) / length if length > 0 else 1.0
    return begin + (starts - begin) * stretch, begin + (ends - begin) * stretch


def _call(view: RankView, program: Program, times: Times, axes: tuple[str, ...], pc: int) -> list[Span]:
    row = int(program.arg[pc])
    pattern = program.patterns[int(program.row_pattern[row])]
    count = int(program.count[pc])
    record = int(program.first_record[pc])
    start, end = int(times.start_ns[pc]), int(times.end_ns[pc])
    meet = min(max(int(times.meet_ns[pc]), start), end)
    size = max(pattern.bytes_in, pattern.bytes_out)
    parts = (("wait", start, meet, f"wait for {pattern.op}"), ("communication", meet, end, pattern.op))
    return [
        Span(
            start_ns=first,
            end_ns=last,
            stream=int(program.stream_ids[program.stream[pc]]),
            name=name if count == 1 else f"{name} and {count - 1} more",
            category=category,
            phase=Phase(int(program.phase[pc])),
            axis=axes[pattern.edge],
            line=view.line(int(view.records.line[record])),
            bytes=size,
        )
        for category, first, last, name in parts
        if last > first
    ]
