"""Chakra traces decode again to what the rank did, and their dependencies can be satisfied."""

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.report.conftest import Rehearsal
from tests.report.wire_reader import fields, messages, packed, read_varint

from sandtable.cluster import load
from sandtable.engine import simulate
from sandtable.report.chakra import write_chakra
from sandtable.report.wire import integer_field, text_field, varint
from sandtable.trace import Kind

COMP, SEND, RECV, COLL = 4, 5, 6, 7
VALUES = {7: int, 9: int, 13: int, 27: bool, 29: bytes.decode}


def decode(message: bytes) -> dict[str, Any]:
    """A node by the names of its fields."""
    names = {1: "id", 2: "name", 3: "type", 4: "ctrl_deps", 5: "data_deps", 6: "start", 7: "duration", 10: "attr"}
    node: dict[str, Any] = {"ctrl_deps": [], "data_deps": [], "attr": {}}
    for number, value in fields(message):
        name = names[number]
        if name == "attr":
            assert isinstance(value, bytes)
            (_, key), (kind, content) = fields(value)
            node["attr"][key.decode()] = VALUES[kind](content)  # type: ignore[operator, union-attr]
        elif name.endswith("deps"):
            assert isinstance(value, bytes)
            node[name] = packed(value)
        else:
            node[name] = value.decode() if isinstance(value, bytes) else value
    return node


def nodes_of(rehearsal: Rehearsal, rank: int, folder: Path) -> list[dict[str, Any]]:
    (path,) = write_chakra(rehearsal.timeline, [rank], folder)
    about, *rest = messages(path.read_bytes())
    assert dict(fields(about))[1] == b"0.0.4"
    return [decode(message) for message in rest]


def test_every_operator_and_call_of_the_step_is_a_node(rehearsal: Rehearsal, tmp_path: Path) -> None:
    view = rehearsal.trace.rank(0)
    kinds = view.records.kind[view.step_slices()[-1]]
    nodes = nodes_of(rehearsal, 0, tmp_path)
    assert sum(node["type"] == COMP for node in nodes) == int((kinds == Kind.OPERATOR).sum())
    assert sum(node["type"] != COMP for node in nodes) == int((kinds == Kind.COLLECTIVE).sum())
    assert [node["id"] for node in nodes] == list(range(len(nodes)))


def test_dependencies_point_back_and_calls_are_awaited(rehearsal: Rehearsal, tmp_path: Path) -> None:
    nodes = nodes_of(rehearsal, 0, tmp_path)
    for node in nodes:
        assert all(before < node["id"] for before in node["data_deps"] + node["ctrl_deps"])
    streams = {node["id"]: node["attr"]["stream"] for node in nodes}
    crossing = [
        (before, node) for node in nodes for before in node["data_deps"] if streams[before] != node["attr"]["stream"]
    ]
    assert any(nodes[before]["type"] in (SEND, RECV, COLL) for before, _ in crossing)


def test_calls_say_size_group_and_peer(rehearsal: Rehearsal, tmp_path: Path) -> None:
    view = rehearsal.trace.rank(0)
    calls = list(view.collectives(view.step_slices()[-1]))
    found = [node for node in nodes_of(rehearsal, 0, tmp_path) if node["type"] != COMP]
    for call, node in zip(calls, found, strict=True):
        assert node["name"] == call.op
        assert node["attr"]["comm_size"] == max(call.bytes_in, call.bytes_out)
        assert node["attr"]["pg_name"] == call.group.name
        if call.op == "send":
            assert (node["type"], node["attr"]["comm_src"], node["attr"]["comm_dst"]) == (SEND, 0, call.peer)
        if call.op == "all_reduce":
            assert (node["type"], node["attr"]["comm_type"]) == (COLL, 0)


def test_durations_are_those_of_the_timeline(rehearsal: Rehearsal, tmp_path: Path) -> None:
    spans = rehearsal.timeline.span_columns(0, whole_run=True)
    own = spans.record >= rehearsal.trace.rank(0).step_slices()[-1].start
    lengths = (spans.end_ns - spans.start_ns)[own].tolist()
    # A call has two spans, waiting and communicating: the second counts.
    total = sum(dict(zip(spans.record[own].tolist(), lengths, strict=True)).values()) / 1000
    nodes = nodes_of(rehearsal, 0, tmp_path)
    assert abs(sum(node["duration"] for node in nodes) - total) < len(nodes)


@given(st.integers(-(2**63), 2**64 - 1))
def test_any_integer_is_read_back(value: int) -> None:
    decoded, end = read_varint(varint(value), 0)
    assert (decoded, end) == (value % 2**64, len(varint(value)))


@given(st.integers(1, 1000), st.text(), st.integers(0, 2**64 - 1))
def test_fields_are_read_back(number: int, text: str, value: int) -> None:
    assert list(fields(text_field(number, text) + integer_field(number, value))) == [
        (number, text.encode()),
        (number, value),
    ]


def test_of_a_rank_that_is_ahead_of_others_the_whole_step_is_there(rehearsal: Rehearsal, tmp_path: Path) -> None:
    timeline = simulate(rehearsal.trace, load("dgx-a100", nodes=2))
    for actor in timeline.actors:
        view = rehearsal.trace.rank(actor.representative)
        kinds = view.records.kind[view.step_slices()[-1]]
        (path,) = write_chakra(timeline, [view.rank], tmp_path)
        _, *nodes = (message for message in messages(path.read_bytes()))
        assert len(nodes) == int(((kinds == Kind.OPERATOR) | (kinds == Kind.COLLECTIVE)).sum())
        timed = [decode(node)["duration"] for node in nodes if decode(node)["type"] == COMP]
        assert sum(duration > 0 for duration in timed) > len(timed) / 2
