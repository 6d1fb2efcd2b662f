"""The Chrome trace: valid, one process a rank, times from the beginning of the step."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tests.report.conftest import Rehearsal

from sandtable.report.perfetto import write_perfetto


def events_of(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return events


def test_each_span_is_an_event_of_its_rank_and_stream(rehearsal: Rehearsal, tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    assert write_perfetto(rehearsal.timeline, [0, 8], path) == [0, 8]
    events = events_of(path)
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {0: "rank 0 (and 7 like it)", 8: "rank 8 (and 7 like it)"}
    for rank in (0, 8):
        spans = rehearsal.timeline.span_columns(rank)
        mine = [event for event in events if event["ph"] == "X" and event["pid"] == rank and event["cat"] != "host"]
        assert len(mine) == len(spans)
        assert {event["tid"] for event in mine} == set(spans.stream.tolist())
        assert sum(event["dur"] for event in mine) == pytest.approx((spans.end_ns - spans.start_ns).sum() / 1000)
        assert max(event["ts"] + event["dur"] for event in mine) <= rehearsal.timeline.step_ns / 1000 + 0.001


def test_the_host_has_a_thread_of_its_own(rehearsal: Rehearsal, tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    write_perfetto(rehearsal.timeline, [8], path)
    host = [event for event in events_of(path) if event.get("cat") == "host"]
    waits = rehearsal.timeline.host_columns(8).waits.tolist()
    assert [event["name"] for event in host] == ["wait for the device" if each else "issue" for each in waits]
    assert {event["name"] for event in host} == {"issue", "wait for the device"}
    assert len({event["tid"] for event in host}) == 1


def test_ranks_that_would_be_too_much_are_left_out(rehearsal: Rehearsal, tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    assert write_perfetto(rehearsal.timeline, [0, 8], path, max_events=10) == [0], "one is always there"
    assert {event["pid"] for event in events_of(path)} == {0}


def test_the_same_timeline_gives_the_same_bytes(rehearsal: Rehearsal, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_perfetto(rehearsal.timeline, [0], tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
