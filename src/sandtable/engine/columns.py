"""Columns: the spans of one rank as arrays, for drawing a hundred thousand of them.

The same as `spans.unroll`, without an object per span. An operator ends when it is done after the one before it, and
never before its host has issued it: end_j = max over i <= j of (ready_i + work_i + ... + work_j), within each run.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sandtable.engine.program import Opcode
from sandtable.engine.spans import RankExecution
from sandtable.trace.kinds import Kind

__all__ = ["CATEGORIES", "HostColumns", "SpanColumns", "host_columns", "span_columns"]

CATEGORIES = ("compute", "communication", "copy", "wait")

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanColumns:
    """One entry per span, by stream and start.

    `name` and `axis` are indices into `names` and `axes`, `category` into `CATEGORIES`, `line` into the lines of the
    trace; `record` is the record of the rank that issued it.
    """

    record: I64
    start_ns: I64
    end_ns: I64
    stream: I64
    name: I64
    category: I64
    phase: I64
    axis: I64
    line: I64
    bytes: I64
    flops: F64
    names: tuple[str, ...]
    axes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostColumns:
    """What a rank's host does, in order: it issues work, or (`waits`) it waits for the device."""

    start_ns: I64
    end_ns: I64
    waits: npt.NDArray[np.bool_]
    count: I64
    """Records that are issued together."""
    line: I64


def host_columns(execution: RankExecution, *, window: tuple[int, int]) -> HostColumns:
    """Return the stretches of the host that touch the window."""
    records, program, times = execution.view.records, execution.program, execution.times
    waits = program.kind == Opcode.HOST_WAIT
    start = times.issue_ns
    end = np.where(waits, times.end_ns, start + program.host_ns)
    kept = np.flatnonzero((end > np.maximum(start, window[0])) & (start < window[1]) & (start >= 0))
    first = program.first_record[kept]
    return HostColumns(
        start_ns=start[kept],
        end_ns=end[kept],
        waits=waits[kept],
        count=program.last_record[kept] - first + 1,
        line=records.line[np.clip(first, 0, len(records) - 1)].astype(np.int64),
    )


def span_columns(execution: RankExecution, *, window: tuple[int, int]) -> SpanColumns:
    """Return the spans that touch the window."""
    view, kind, times, axes = execution.view, execution.program.kind, execution.times, execution.axes
    touches = (times.end_ns > window[0]) & (times.start_ns < window[1]) & (times.start_ns >= 0)
    runs = _operators(execution, np.flatnonzero(touches & (kind == Opcode.RUN)))
    calls, call_names = _calls(execution, np.flatnonzero(touches & (kind == Opcode.CALL)))
    refs, names = np.unique(runs["name"], return_inverse=True)
    operators = tuple(view.signature(int(ref)).op for ref in refs)
    runs["name"] = names.reshape(-1)
    calls["name"] = calls["name"] + len(operators)
    columns = {name: np.concatenate([runs[name], calls[name]]) for name in runs}
    columns["axis"][: len(runs["axis"])] = len(axes)
    kept = np.flatnonzero(columns["end_ns"] > columns["start_ns"])
    order = kept[np.lexsort((columns["start_ns"][kept], columns["stream"][kept]))]
    flops = columns.pop("flops")[order]
    ordered = {name: column[order].astype(np.int64) for name, column in columns.items()}
    return SpanColumns(**ordered, flops=flops, names=operators + call_names, axes=(*axes, ""))


def _operators(execution: RankExecution, runs: I64) -> dict[str, npt.NDArray[Any]]:
    """Return every operator of these runs; a run that was slowed down is stretched evenly."""
    records, program, times, table = execution.view.records, execution.program, execution.times, execution.table
    first, last = program.first_record[runs], program.last_record[runs]
    is_operator = records.kind == Kind.OPERATOR
    passed = np.concatenate(([0], np.cumsum(is_operator)))
    counts = passed[last + 1] - passed[first]
    run = np.repeat(np.arange(len(runs)), counts)
    offset = np.arange(len(run)) - np.repeat(np.cumsum(counts) - counts, counts)
    rows = np.flatnonzero(is_operator)[passed[first][run] + offset]
    refs, phases = records.ref[rows].astype(np.int64), records.phase[rows]
    costs, pc = table.costs, runs[run]
    work = costs.work_ns[refs]
    starting = np.cumsum(counts) - counts
    issued = times.issue_ns[pc] + _running(costs.host_ns[phases, refs], starting, counts)
    begin, end = times.start_ns[pc].astype(np.float64), times.end_ns[pc].astype(np.float64)
    done = _running(work, starting, counts)
    free = _highest(np.maximum(issued + costs.launch_latency_ns, begin) - (done - work), run)
    ends = done + free
    finish = ends[np.cumsum(counts) - 1][run] if len(run) else ends
    stretch = np.where(finish > begin, (end - begin) / np.maximum(finish - begin, 1e-9), 1.0)
    return {
        "record": rows,
        "start_ns": (begin + (ends - work - begin) * stretch).astype(np.int64),
        "end_ns": (begin + (ends - begin) * stretch).astype(np.int64),
        "stream": program.stream_ids[program.stream[pc]].astype(np.int64),
        "name": refs,
        "category": np.where(program.is_copy[pc] > 0, CATEGORIES.index("copy"), CATEGORIES.index("compute")),
        "phase": phases.astype(np.int64),
        "axis": np.zeros(len(rows), dtype=np.int64),
        "line": records.line[rows].astype(np.int64),
        "bytes": table.bytes_moved[refs].astype(np.int64),
        "flops": table.flops[refs].astype(np.float64),
    }


def _calls(execution: RankExecution, calls: I64) -> tuple[dict[str, npt.NDArray[Any]], tuple[str, ...]]:
    """Return two spans per call: waiting for the others, and communicating."""
    view, program, times = execution.view, execution.program, execution.times
    row = program.arg[calls].astype(np.int64)
    pattern = program.row_pattern[row].astype(np.int64)
    edges = np.array([call.edge for call in program.patterns] or [0], dtype=np.int64)
    sizes = np.array([max(call.bytes_in, call.bytes_out) for call in program.patterns] or [0], dtype=np.int64)
    start, end = times.start_ns[calls], times.end_ns[calls]
    meet = np.clip(times.meet_ns[calls], start, end)
    count = program.count[calls].astype(np.int64)
    keys, name = np.unique(np.stack([pattern, count], axis=1), axis=0, return_inverse=True)
    texts = [_call_name(program.patterns[index].op, calls_joined) for index, calls_joined in keys.tolist()]
    name = name.reshape(-1)
    category = np.repeat([CATEGORIES.index("wait"), CATEGORIES.index("communication")], len(calls))

    def both(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.concatenate([column, column])

    columns: dict[str, npt.NDArray[Any]] = {
        "record": both(program.first_record[calls].astype(np.int64)),
        "start_ns": np.concatenate([start, meet]),
        "end_ns": np.concatenate([meet, end]),
        "stream": both(program.stream_ids[program.stream[calls]].astype(np.int64)),
        "name": np.concatenate([name + len(texts), name]),
        "category": category,
        "phase": both(program.phase[calls].astype(np.int64)),
        "axis": both(edges[pattern]),
        "line": both(view.records.line[program.first_record[calls]].astype(np.int64)),
        "bytes": both(sizes[pattern]),
        "flops": np.zeros(2 * len(calls)),
    }
    return columns, (*texts, *(f"wait for {text}" for text in texts))


def _call_name(op: str, count: int) -> str:
    return op if count == 1 else f"{op} and {count - 1} more"


def _running(values: F64, starting: I64, counts: I64) -> F64:
    """Return running sums that restart with each run."""
    total = np.concatenate(([0.0], np.cumsum(values)))
    sums: F64 = total[1:] - np.repeat(total[starting], counts)
    return sums


def _highest(values: F64, run: I64) -> F64:
    """Return running maxima that restart with each run: runs are lifted apart, so that each begins above the last."""
    if not len(values):
        return values
    lift = run * (values.max() - values.min() + 1.0)
    highest: F64 = np.maximum.accumulate(values + lift) - lift
    return highest
