"""Programs: the records of a class of ranks, with costs, as instructions for the event clock.

A capture has a row for every operator; the clock needs far fewer. Operators that follow each other on one stream, with
nothing between them that another stream or rank could see, are one *run*, which three numbers describe. With issue
costs h and work d of its operators, and the launch latency l,

    work = sum d        lead = h_0 + l        lag = max over j of (h_0 + ... + h_j) + l + (d_j + ... + d_n)

so that a run whose first operator is issued at t on a stream that is free at f ends at max(f + work, t + lag): bound by
the device, or by the host that issues it.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from sandtable.engine.operator_table import Costs
from sandtable.trace.kinds import P2P_OPS, TO_THE_END, Kind, LaunchKind, SyncKind
from sandtable.trace.records import RankRecords

__all__ = ["CallPattern", "Edge", "Opcode", "Program", "compile_program"]

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
F64 = npt.NDArray[np.float64]


class Opcode(IntEnum):
    """What an instruction does; the numbers are those of csrc/clock.cpp."""

    RUN = 0
    CALL = 1
    WAIT = 2
    MARK = 3
    HOST_WAIT = 4


@dataclass(frozen=True, slots=True)
class Edge:
    """Whom a rank meets: one of its groups, or one peer of a group in one direction."""

    group: int
    """The rank's own number of the group."""
    peer: int = -1
    """Point-to-point: the peer's position minus the rank's own, modulo the group's size; -1 for collectives."""
    sends: bool = False

    @property
    def is_p2p(self) -> bool:
        return self.peer >= 0


@dataclass(frozen=True, slots=True)
class CallPattern:
    """One kind of call on an edge: it puts the same on the wires each time."""

    edge: int
    op: str
    dtype: str
    bytes_in: int
    bytes_out: int
    root: int = 0
    """The root's position in the group, for rooted collectives."""
    behind_bytes: int = 0
    """For a message received: bytes sent to the same peer in one batch with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The instructions of one class of ranks on one kind of device, one entry per instruction."""

    kind: npt.NDArray[np.uint8]
    phase: npt.NDArray[np.uint8]
    stream: npt.NDArray[np.uint16]
    is_copy: npt.NDArray[np.uint8]
    arg: I32
    count: I32
    host_ns: I64
    work_ns: I64
    lag_ns: I64
    lead_ns: I64
    first_record: I64
    last_record: I64
    row_edge: I32
    row_occurrence: I32
    row_pattern: I32
    edges: tuple[Edge, ...]
    patterns: tuple[CallPattern, ...]
    stream_ids: npt.NDArray[np.uint16]
    """The trace's number of each stream."""
    steps: I64
    """The instructions that mark the ends of optimizer steps."""
    first_work: int
    """The first instruction of training proper: everything before the first matrix product is set-up."""

    def __len__(self) -> int:
        return len(self.kind)


_KEPT = (
    Kind.OPERATOR, Kind.COLLECTIVE, Kind.WAIT, Kind.EVENT_RECORD, Kind.EVENT_WAIT, Kind.HOST_SYNC, Kind.STEP,
)  # fmt: skip


_LAUNCHED = (Kind.OPERATOR, Kind.COLLECTIVE, Kind.EVENT_RECORD, Kind.EVENT_WAIT)
"""What may be part of a CUDA graph, and then costs the host nothing: the value is a `LaunchKind`."""


def compile_program(rank: RankRecords, costs: Costs) -> Program:
    """Compile the program of `rank`."""
    return _Compiler(rank, costs).compile()


class _Compiler:
    """The columns during compilation: `records` are those kept, `begins` is where instructions begin among them."""

    def __init__(self, rank: RankRecords, costs: Costs) -> None:
        self.rank, self.costs = rank, costs
        kept = np.isin(rank.records.kind, np.array([int(kind) for kind in _KEPT], dtype=np.uint8))
        ends = np.flatnonzero(rank.records.kind == Kind.STEP)
        if len(ends) and not any(note.kind == TO_THE_END for note in rank.notes):
            kept[int(ends[-1]) + 1 :] = False  # what follows the last step is a step that was cut short
        self.index = np.flatnonzero(kept & ~self._later_in_batch())
        self.kind = rank.records.kind[self.index]
        self.ref = rank.records.ref[self.index].astype(np.int64)
        self.phase = rank.records.phase[self.index]
        self.is_op = self.kind == Kind.OPERATOR
        self.stream_ids, self.stream = np.unique(rank.records.stream[self.index], return_inverse=True)
        if not len(self.stream_ids):
            self.stream_ids = np.zeros(1, dtype=np.uint16)

    def compile(self) -> Program:
        begins, first_work = self._begins()
        lengths = np.diff(np.append(begins, len(self.index)))
        costs = self._run_costs(begins)
        repeats = self._repeats(begins)
        pick = np.repeat(np.arange(len(begins)), repeats)
        copy_of = np.arange(len(pick)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
        kind = self._orders(begins)[pick]
        kind[(copy_of > 0) & (kind == Opcode.RUN)] = Opcode.HOST_WAIT
        at = begins[pick]
        arg, count, rows = self._arguments(kind, at, copy_of)
        is_wait = kind == Opcode.HOST_WAIT
        zero = (copy_of > 0) | (is_wait & (self.kind[at] != Kind.HOST_SYNC))
        columns = {name: np.where(zero, 0, column[pick]) for name, column in costs.items()}
        edges, patterns, row_columns = self._edges(rows)
        records = self.index[at]
        steps = np.flatnonzero((self.kind[at] == Kind.STEP) & (kind == Opcode.MARK))
        return Program(
            kind=kind.astype(np.uint8),
            phase=self.phase[at],
            stream=self.stream[at].astype(np.uint16),
            is_copy=(self.is_op[at] & self._is_copy(at)).astype(np.uint8),
            arg=arg,
            count=count,
            first_record=records,
            last_record=self.index[at + lengths[pick] - 1],
            edges=edges,
            patterns=patterns,
            stream_ids=self.stream_ids,
            steps=steps,
            first_work=int(np.searchsorted(at, first_work)),
            row_edge=row_columns[0],
            row_occurrence=row_columns[1],
            row_pattern=row_columns[2],
            **columns,
        )

    def _later_in_batch(self) -> npt.NDArray[np.bool_]:
        """Return which records are point-to-point calls in one batch with an earlier call, which stands for all."""
        records, calls = self.rank.records, self.rank.calls
        later = np.zeros(len(records), dtype=bool)
        index = np.flatnonzero(records.kind == Kind.COLLECTIVE)
        rows = records.ref[index]
        batch = np.where(self._is_p2p()[rows], calls.batch[rows], 0).astype(np.int64)
        later[index[1:]] = (batch[1:] > 0) & (batch[1:] == batch[:-1])
        return later

    def _is_p2p(self) -> npt.NDArray[np.bool_]:
        kinds = np.array([op in P2P_OPS for op in self.rank.call_ops] or [False])
        return np.asarray(kinds[self.rank.calls.op], dtype=bool)

    def _is_copy(self, at: I64) -> npt.NDArray[np.bool_]:
        safe = np.where(self.is_op[at], self.ref[at], 0)
        return self.costs.is_copy[safe] if len(self.costs.is_copy) else np.zeros(len(at), dtype=bool)

    def _begins(self) -> tuple[I64, int]:
        """Return where instructions begin among the kept records, and the record that the first step begins with."""
        if not len(self.index):
            return np.zeros(0, dtype=np.int64), 0
        every = np.arange(len(self.index))
        copy = self._is_copy(every)
        joins = self.is_op[1:] & self.is_op[:-1] & (self.stream[1:] == self.stream[:-1])
        joins &= (self.phase[1:] == self.phase[:-1]) & (copy[1:] == copy[:-1])
        starts = np.append(True, ~joins)
        worked = np.flatnonzero(self.is_op & self.costs.has_flops[np.where(self.is_op, self.ref, 0)])
        first_work = int(worked[0]) if len(worked) else 0
        starts[first_work] = True
        return np.flatnonzero(starts), first_work

    def _run_costs(self, begins: I64) -> dict[str, I64]:
        """Return host cost, work, lag and lead of the instruction that begins at each of `begins`."""
        costs = self.costs
        safe = np.where(self.is_op, self.ref, 0)
        work = np.where(self.is_op, costs.work_ns[safe], 0.0)
        host = np.where(self.is_op, costs.host_ns[self.phase, safe], costs.mark_host_ns)
        host[self.kind == Kind.COLLECTIVE] = costs.call_host_ns
        launch = np.where(np.isin(self.kind, _LAUNCHED), self.rank.records.value[self.index], LaunchKind.EAGER)
        host *= np.where(launch == LaunchKind.HOOKED, costs.hooked_scale, 1.0)
        is_eager = (launch == LaunchKind.EAGER) | (launch == LaunchKind.HOOKED)
        host = np.where(is_eager, host, costs.launch_host_ns[launch])
        host[(self.kind == Kind.WAIT) | (self.kind == Kind.STEP)] = 0.0
        if not len(begins):
            return {name: np.zeros(0, dtype=np.int64) for name in ("host_ns", "work_ns", "lag_ns", "lead_ns")}
        ends = np.append(begins[1:], len(self.index)) - 1
        host_until, work_until = np.cumsum(host), np.cumsum(work)
        host_before = host_until[begins] - host[begins]
        if costs.is_synchronous:  # the host does the work between issuing one operator and the next
            slack = host_until[ends] - (work_until[begins] - work[begins])
        else:
            slack = np.maximum.reduceat(host_until - (work_until - work), begins)
        is_run = self.is_op[begins]
        return {
            "host_ns": _round(host_until[ends] - host_before),
            "work_ns": _round(np.where(is_run, work_until[ends] - work_until[begins] + work[begins], 0)),
            "lag_ns": _round(np.where(is_run, slack - host_before + work_until[ends] + costs.launch_latency_ns, 0)),
            "lead_ns": _round(np.where(is_run, host[begins] + costs.launch_latency_ns, 0)),
        }

    def _repeats(self, begins: I64) -> I64:
        """Return how many instructions each becomes: a wait for the device is one per stream."""
        repeats = np.ones(len(begins), dtype=np.int64)
        sync = self.kind[begins] == Kind.HOST_SYNC
        device = self.rank.records.value[self.index[begins]] == SyncKind.DEVICE
        repeats[sync & device] = len(self.stream_ids)
        if self.costs.is_synchronous:
            repeats[self.is_op[begins]] = 2
        return repeats

    def _orders(self, begins: I64) -> npt.NDArray[np.int64]:
        orders = np.zeros(len(Kind), dtype=np.int64)
        orders[Kind.OPERATOR] = Opcode.RUN
        orders[Kind.COLLECTIVE] = Opcode.CALL
        orders[[Kind.WAIT, Kind.EVENT_WAIT]] = Opcode.WAIT
        orders[[Kind.EVENT_RECORD, Kind.STEP]] = Opcode.MARK
        orders[Kind.HOST_SYNC] = Opcode.HOST_WAIT
        return orders[self.kind[begins]]

    def _arguments(self, kind: I64, at: I64, copy_of: I64) -> tuple[I32, I32, I64]:
        """Return `arg` and `count` of each instruction, and the rows of `calls` in the order of CALL instructions."""
        arg = np.full(len(kind), -1, dtype=np.int32)
        count = np.zeros(len(kind), dtype=np.int32)
        calls = np.flatnonzero(kind == Opcode.CALL)
        rows, first, size = self._rows_of_calls(at[calls])
        arg[calls], count[calls] = first, size
        call_of_row = np.full(len(self.rank.calls) + 1, -1, dtype=np.int32)
        call_of_row[rows] = np.repeat(calls, size)
        waits = np.flatnonzero((kind == Opcode.WAIT) & (self.kind[at] == Kind.WAIT))
        arg[waits] = call_of_row[self.ref[at[waits]]]
        self._bind_events(arg, kind, at)
        self._bind_host_waits(arg, kind, at, copy_of)
        return arg, count, rows

    def _rows_of_calls(self, at: I64) -> tuple[I64, I32, I32]:
        """Return the rows call after call, and for each call its first row and their number."""
        batch = np.where(self._is_p2p(), self.rank.calls.batch, 0).astype(np.int64)
        first_row = self.ref[at]
        size = np.ones(len(at), dtype=np.int64)
        numbers = batch[first_row]
        if (numbers > 0).any():
            members = np.bincount(batch, minlength=int(batch.max()) + 1)
            size = np.where(numbers > 0, members[numbers], 1)
        first = np.cumsum(size) - size
        offset = np.arange(int(size.sum())) - np.repeat(first, size)
        # Calls of a batch are issued one after the other, so their rows are neighbours.
        rows = np.repeat(first_row, size) + offset
        return rows, first.astype(np.int32), size.astype(np.int32)

    def _bind_events(self, arg: I32, kind: I64, at: I64) -> None:
        """Bind each wait for an event to the event's last recording before it."""
        marks = np.flatnonzero((kind == Opcode.MARK) & (self.kind[at] == Kind.EVENT_RECORD))
        source = self.kind[at]
        waits = np.flatnonzero((kind == Opcode.WAIT) & (source == Kind.EVENT_WAIT))
        sync = self.rank.records.value[self.index[at]]
        waits = np.append(
            waits, np.flatnonzero((kind == Opcode.HOST_WAIT) & (source == Kind.HOST_SYNC) & (sync == SyncKind.EVENT))
        )
        span = len(kind) + 1
        keys = self.ref[at[marks]] * span + marks
        order = np.argsort(keys)
        position = np.searchsorted(keys[order], self.ref[at[waits]] * span + waits) - 1
        mark = marks[order[np.maximum(position, 0)]] if len(marks) else np.full(len(waits), -1)
        same = (
            (position >= 0) & (self.ref[at[mark]] == self.ref[at[waits]]) if len(marks) else np.zeros(len(waits), bool)
        )
        arg[waits] = np.where(same, mark, -1)

    def _bind_host_waits(self, arg: I32, kind: I64, at: I64, copy_of: I64) -> None:
        """Bind each wait of the host to what was last issued on the stream it waits for."""
        sync = self.rank.records.value[self.index[at]]
        source = self.kind[at]
        waits = np.flatnonzero((kind == Opcode.HOST_WAIT) & ~((source == Kind.HOST_SYNC) & (sync == SyncKind.EVENT)))
        of_device = (source[waits] == Kind.HOST_SYNC) & (sync[waits] == SyncKind.DEVICE)
        streams = np.where(of_device, copy_of[waits], self.stream[at[waits]])
        on_device = kind != Opcode.HOST_WAIT
        for stream in np.unique(streams):
            issued = np.flatnonzero(on_device & (self.stream[at] == stream))
            stream_waits = waits[streams == stream]
            before = np.searchsorted(issued, stream_waits) - 1
            arg[stream_waits] = np.where(before >= 0, issued[np.maximum(before, 0)] if len(issued) else -1, -1)

    def _edges(self, rows: I64) -> tuple[tuple[Edge, ...], tuple[CallPattern, ...], tuple[I32, I32, I32]]:
        calls, ops = self.rank.calls, self.rank.call_ops
        if not len(rows):
            empty = np.zeros(0, dtype=np.int32)
            return (), (), (empty, empty, empty)
        p2p = self._is_p2p()[rows]
        sends = np.array([op == "send" for op in ops])[calls.op[rows]] & p2p
        group = calls.group[rows].astype(np.int64)
        peer = np.where(p2p, calls.peer[rows], -1).astype(np.int64)
        root = np.where(p2p, 0, np.maximum(calls.peer[rows], 0))
        edge_at, edge = _label(group, peer, sends)
        detail: list[npt.NDArray[Any]] = [
            calls.op[rows],
            calls.dtype[rows],
            calls.bytes_in[rows],
            calls.bytes_out[rows],
            root,
            self._behind_bytes(rows, group, peer, sends),
        ]
        at, pattern = _label(edge, *detail)
        edges = tuple(Edge(int(group[i]), int(peer[i]), bool(sends[i])) for i in edge_at)
        patterns = tuple(
            CallPattern(int(edge[i]), ops[int(op)], self.rank.dtypes[int(dtype)], *map(int, sizes))
            for i, op, dtype, *sizes in zip(at, *(column[at] for column in detail), strict=True)
        )
        before = _count_before(edge)
        return edges, patterns, (edge.astype(np.int32), before.astype(np.int32), pattern.astype(np.int32))

    def _behind_bytes(self, rows: I64, group: I64, peer: I64, sends: npt.NDArray[np.bool_]) -> I64:
        """Return for each message received the bytes sent to the same peer in one batch with it."""
        batch = np.where(peer >= 0, self.rank.calls.batch[rows], 0).astype(np.int64)
        _, together = _label(group, peer, batch)
        sent = np.bincount(together, weights=np.where(sends, self.rank.calls.bytes_in[rows], 0))
        return np.where((batch > 0) & ~sends, sent[together], 0).astype(np.int64)


def _round(values: F64) -> I64:
    return np.rint(values).astype(np.int64)


def _label(*columns: npt.NDArray[Any]) -> tuple[I64, I64]:
    """Give rows of equal content one number: return where each number first appears, and the number of each row."""
    labels = np.zeros(len(columns[0]), dtype=np.int64)
    first = np.zeros(0, dtype=np.int64)
    for column in columns:
        values, numbers = np.unique(column, return_inverse=True)
        _, first, labels = np.unique(labels * len(values) + numbers, return_index=True, return_inverse=True)
    return first, labels


def _count_before(labels: I64) -> I64:
    """Return for each entry how many equal ones come before it."""
    order = np.argsort(labels, kind="stable")
    ordered = labels[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    lengths = np.diff(np.append(starts, len(ordered)))
    before = np.empty(len(labels), dtype=np.int64)
    before[order] = np.arange(len(labels)) - np.repeat(starts, lengths)
    return before
