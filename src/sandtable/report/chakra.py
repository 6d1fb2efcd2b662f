"""Chakra: the step of a rank as an MLCommons Chakra execution trace, for other simulators (ASTRA-sim) and tools.

Each rank has one file, `rank.<n>.et`: a `GlobalMetadata`, then a `Node` for every operator and call of the step, each
preceded by its length (schema: chakra/schema/protobuf/et_def.proto, package ChakraProtoMsg). Data
dependencies are the order on a stream and the events and waits between streams; control dependencies are what the host
waited for before it continued. Durations are simulated.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sandtable.engine.columns import SpanColumns
from sandtable.engine.timeline import Timeline
from sandtable.report.wire import bytes_field, delimited, integer_field, packed_field, text_field
from sandtable.trace import Kind, RankView
from sandtable.units import NS_PER_US

__all__ = ["write_chakra"]

SCHEMA = "0.0.4"

_COMP, _SEND, _RECV, _COLL = 4, 5, 6, 7
_COLLECTIVES = {
    "all_reduce": 0,
    "reduce": 1,
    "all_gather": 2,
    "gather": 3,
    "scatter": 4,
    "broadcast": 5,
    "all_to_all": 6,
    "reduce_scatter": 7,
    "barrier": 9,
}


def write_chakra(timeline: Timeline, ranks: Sequence[int], folder: Path) -> list[Path]:
    """Write one file for each of `ranks`, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for rank in ranks:
        path = folder / f"rank.{rank}.et"
        path.write_bytes(b"".join(_messages(timeline.trace.rank(rank), timeline)))
        written.append(path)
    return written


def _messages(view: RankView, timeline: Timeline) -> list[bytes]:
    origin = text_field(1, "made_by") + text_field(29, "sandtable")
    who = text_field(1, "rank") + integer_field(9, view.rank)
    about = text_field(1, SCHEMA) + bytes_field(2, origin) + bytes_field(2, who)
    return [delimited(about), *(delimited(node) for node in _Nodes(view, timeline).all())]


class _Time(NamedTuple):
    start_ns: int
    length_ns: int


class _Nodes:
    """Walks the records of the step once, and keeps the last node of each stream."""

    def __init__(self, view: RankView, timeline: Timeline) -> None:
        self.view, self.records = view, view.records
        # The rank's own step: a rank that is ahead of others begins it before the window.
        spans = timeline.span_columns(view.rank, whole_run=True)
        self.step = _own_step(view, timeline, spans)
        begin = int(spans.start_ns[spans.record >= self.step.start].min(initial=1 << 62))
        starts, lengths = spans.start_ns - begin, spans.end_ns - spans.start_ns
        self.times: dict[int, _Time] = {}
        self.facts: dict[int, tuple[int, int]] = {}
        for record, start, length, size, work in zip(
            *(c.tolist() for c in (spans.record, starts, lengths, spans.bytes, spans.flops)), strict=True
        ):
            # A call has two spans, waiting and communicating: the second counts.
            self.times[record] = _Time(max(start, 0), length)
            self.facts[record] = (size, int(work))
        self.last: dict[int, int] = {}
        self.waiting: dict[int, set[int]] = {}
        self.events: dict[int, int] = {}
        self.calls: dict[int, int] = {}
        self.host: set[int] = set()
        self.count = 0

    def all(self) -> list[bytes]:
        nodes = []
        for row in range(self.step.start, self.step.stop):
            node = self._visit(row)
            if node is not None:
                nodes.append(node)
        return nodes

    def _visit(self, row: int) -> bytes | None:
        kind, ref = int(self.records.kind[row]), int(self.records.ref[row])
        stream = int(self.records.stream[row])
        if kind == Kind.OPERATOR:
            return self._operator(row, ref, stream)
        if kind == Kind.COLLECTIVE:
            return self._call(row, ref, stream)
        if kind == Kind.EVENT_RECORD and stream in self.last:
            self.events[ref] = self.last[stream]
        elif kind == Kind.EVENT_WAIT and ref in self.events:
            self.waiting.setdefault(stream, set()).add(self.events[ref])
        elif kind == Kind.WAIT and ref in self.calls:
            self.waiting.setdefault(stream, set()).add(self.calls[ref])
        elif kind == Kind.HOST_SYNC:
            self.host = set(self.last.values())
        return None

    def _operator(self, row: int, ref: int, stream: int) -> bytes:
        size, work = self.facts.get(row, (0, 0))
        facts = _integer("num_ops", work) + _unsigned("tensor_size", size)
        return self._node(row, stream, self.view.signature(ref).op, _COMP, facts)

    def _call(self, row: int, ref: int, stream: int) -> bytes:
        calls, view = self.view.calls, self.view
        op = view.rank_class.records.call_ops[int(calls.op[ref])]
        group = view.group(int(calls.group[ref]))
        size = int(max(calls.bytes_in[ref], calls.bytes_out[ref]))
        facts = _integer("comm_size", size) + _text("pg_name", group.name)
        peer = view.peer(ref)
        if op in ("send", "recv") and peer is not None:
            source, target = (view.rank, peer) if op == "send" else (peer, view.rank)
            facts += _small("comm_src", source) + _small("comm_dst", target) + _small("comm_tag", int(calls.seq[ref]))
            kind = _SEND if op == "send" else _RECV
        else:
            facts += _integer("comm_type", _COLLECTIVES.get(op, _COLLECTIVES["barrier"]))
            kind = _COLL
        node = self._node(row, stream, op, kind, facts)
        self.calls[ref] = self.last[stream]
        return node

    def _node(self, row: int, stream: int, name: str, kind: int, facts: bytes) -> bytes:
        number, self.count = self.count, self.count + 1
        before = self.waiting.pop(stream, set()) | ({self.last[stream]} if stream in self.last else set())
        self.last[stream] = number
        time = self.times.get(row, _Time(0, 0))
        return b"".join(
            [
                integer_field(1, number),
                text_field(2, name),
                integer_field(3, kind),
                packed_field(4, sorted(self.host - before)),
                packed_field(5, sorted(before)),
                integer_field(6, time.start_ns // NS_PER_US),
                integer_field(7, int(np.rint(time.length_ns / NS_PER_US))),
                facts,
                _flag("is_cpu_op", False),
                _integer("stream", stream),
            ]
        )


def _own_step(view: RankView, timeline: Timeline, spans: SpanColumns) -> slice:
    """Return the records of the rank's step; of an only step, those inside the window, without the set-up."""
    rows = view.step_slice(timeline.step_number)
    if timeline.step_number > 1:
        return rows
    inside = spans.record[spans.start_ns >= timeline.step_start_ns]
    return slice(int(inside.min(initial=len(view.records))), rows.stop)


def _attribute(name: str, value: bytes) -> bytes:
    """Return field 10 of a node: an `AttributeProto`."""
    return bytes_field(10, text_field(1, name) + value)


def _integer(name: str, value: int) -> bytes:
    return _attribute(name, integer_field(9, value))


def _small(name: str, value: int) -> bytes:
    return _attribute(name, integer_field(7, value))


def _unsigned(name: str, value: int) -> bytes:
    return _attribute(name, integer_field(13, value))


def _flag(name: str, value: bool) -> bytes:
    return _attribute(name, integer_field(27, value))


def _text(name: str, value: str) -> bytes:
    return _attribute(name, text_field(29, value))
