"""Spans as columns are the spans, to a nanosecond."""

import pytest
from tests.vgpu.capturing import capture

from sandtable.cluster import load
from sandtable.engine import Timeline, simulate
from sandtable.engine.columns import CATEGORIES


@pytest.fixture(scope="module")
def timeline() -> Timeline:
    trace = capture("gpt_3d.py", "--tp", 2, "--pp", 2, world_size=16)
    return simulate(trace, load("dgx-a100", nodes=2))


def test_columns_hold_what_spans_hold(timeline: Timeline) -> None:
    for actor in timeline.actors:
        spans = sorted(timeline.spans(actor.representative), key=lambda span: (span.stream, span.start_ns))
        columns = timeline.span_columns(actor.representative)
        assert len(columns) == len(spans) > 100
        for k, span in enumerate(spans):
            assert abs(columns.start_ns[k] - span.start_ns) <= 1
            assert abs(columns.end_ns[k] - span.end_ns) <= 1
            assert (columns.stream[k], columns.phase[k], columns.bytes[k]) == (span.stream, span.phase, span.bytes)
            assert (columns.names[columns.name[k]], columns.axes[columns.axis[k]]) == (span.name, span.axis)
            assert CATEGORIES[columns.category[k]] == span.category
            assert timeline.trace.lines[columns.line[k]] == span.line


def test_spans_of_a_stream_follow_each_other(timeline: Timeline) -> None:
    columns = timeline.span_columns(0)
    same = columns.stream[1:] == columns.stream[:-1]
    assert (columns.start_ns[1:][same] >= columns.end_ns[:-1][same] - 1).all()


def test_the_host_does_one_thing_after_the_other(timeline: Timeline) -> None:
    for actor in timeline.actors:
        host = timeline.host_columns(actor.representative)
        assert len(host.start_ns) > 10
        assert (host.end_ns > host.start_ns).all()
        assert (host.start_ns[1:] >= host.end_ns[:-1]).all()


def test_records_have_times_that_ascend(timeline: Timeline) -> None:
    for actor in timeline.actors:
        rows, moments = timeline.record_times(actor.representative)
        assert (rows[1:] >= rows[:-1]).all()
        assert (moments[1:] >= moments[:-1]).all()
        assert moments[-1] >= timeline.step_start_ns
