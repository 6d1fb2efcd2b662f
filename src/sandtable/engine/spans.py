"""Spans: the instructions of one rank expanded into single operators and calls, with their times."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sandtable.engine.clock import Times
from sandtable.engine.operator_table import OperatorTable
from sandtable.engine.program import Opcode, Program
from sandtable.trace.kinds import Kind, Phase
from sandtable.trace.lines import Line
from sandtable.trace.view import RankView

__all__ = ["RankExecution", "Span", "unroll"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExecution:
    """One rank of a simulated run: its records, its actor's program and times, costs, and the axis of each edge."""

    view: RankView
    program: Program
    times: Times
    table: OperatorTable
    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Something that takes time on one stream of a device."""

    start_ns: int
    end_ns: int
    stream: int
    name: str
    category: str
    """`compute`, `communication`, `copy`, or `wait` (a call whose other members have not arrived yet)."""
    phase: Phase
    line: Line
    axis: str = ""
    bytes: int = 0
    flops: int = 0


def unroll(execution: RankExecution, *, window: tuple[int, int]) -> list[Span]:
    """Return the spans that touch the window, in order of start."""
    kind, times = execution.program.kind, execution.times
    touches = (times.end_ns > window[0]) & (times.start_ns < window[1]) & (times.start_ns >= 0)
    spans: list[Span] = []
    for pc in np.flatnonzero(touches & (kind == Opcode.RUN)).tolist():
        spans.extend(_operators(execution, pc))
    for pc in np.flatnonzero(touches & (kind == Opcode.CALL)).tolist():
        spans.extend(_call(execution, pc))
    return sorted(spans, key=lambda span: (span.start_ns, span.stream, span.end_ns))


def _operators(execution: RankExecution, pc: int) -> list[Span]:
    """Return the operators of one run with their durations, stretched evenly where the run was slowed down."""
    view, program, table = execution.view, execution.program, execution.table
    rows = np.arange(int(program.first_record[pc]), int(program.last_record[pc]) + 1)
    rows = rows[view.records.kind[rows] == Kind.OPERATOR]
    refs = view.records.ref[rows].astype(np.int64)
    starts, ends = _within_run(execution, refs, view.records.phase[rows], pc)
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
    execution: RankExecution, refs: npt.NDArray[np.int64], phases: npt.NDArray[np.uint8], pc: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    costs, times = execution.table.costs, execution.times
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


def _call(execution: RankExecution, pc: int) -> list[Span]:
    view, program, times = execution.view, execution.program, execution.times
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
            axis=execution.axes[pattern.edge],
            line=view.line(int(view.records.line[record])),
            bytes=size,
        )
        for category, first, last, name in parts
        if last > first
    ]
