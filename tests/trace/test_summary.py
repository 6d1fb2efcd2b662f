"""The summary: totals of the job, one step of a rank, and plain data."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.trace.building import MM, PAIRS, RUN, WORLD, make_rank

from sandtable.trace import CaptureSummary, Kind, Note, RankRecords, RunFacts, Trace, format_ranks, summarise_trace


@pytest.fixture
def summary() -> CaptureSummary:
    light = make_rank(3, signatures=[MM, MM])
    trace = Trace.assemble(
        {0: make_rank(0), 3: light},
        classes={0: [0, 1, 2], 3: [3]},
        groups=[WORLD, *PAIRS],
        run=replace(RUN, core_seconds=2.5, peak_rss_bytes=77, notes=(Note("run", "hello"),), captured_ranks=(0, 1, 3)),
    )
    return summarise_trace(trace)


def test_operators_count_once_a_representative_and_once_a_rank(summary: CaptureSummary):
    assert [row.num_operators for row in summary.classes] == [5, 5]
    assert summary.operators_captured == 10
    assert summary.operators_total == 20


def test_flops_are_those_of_the_last_step_times_the_ranks(summary: CaptureSummary):
    assert [row.operators_per_step for row in summary.classes] == [2, 2]
    assert [row.flops_per_step for row in summary.classes] == [1024, 2048]
    assert summary.flops_per_step == 3 * 1024 + 2048


def test_traffic_is_that_of_one_step_by_operator_and_group(summary: CaptureSummary):
    rows = [(t.op, t.group_name, t.group_size, t.num_calls, t.bytes_in, t.bytes_out) for t in summary.traffic]
    assert rows == [("all_reduce", "world", 4, 1, 1024, 1024), ("send", "even", 2, 1, 256, 0)]
    assert summary.classes[1].traffic[1].group_name == "odd"


def test_memory_stands_beside_the_capacity(summary: CaptureSummary):
    memory = summary.classes[0].memory
    assert (memory.allocated_bytes, memory.reserved_bytes, memory.capacity_bytes) == (512, 2**21, 2**30)


def test_sync_points_are_lines_with_their_ranks(summary: CaptureSummary):
    (point,) = summary.sync_points
    assert (point.kind, point.file, point.line, point.num_syncs, point.num_ranks) == ("item", "train.py", 20, 2, 4)


def test_facts_of_the_run_are_carried_over(summary: CaptureSummary):
    assert (summary.world_size, summary.captured_ranks, summary.num_groups) == (4, (0, 1, 3), 3)
    assert (summary.wall_seconds, summary.core_seconds, summary.peak_rss_bytes) == (1.5, 2.5, 77)
    assert [(note.kind, note.line) for note in summary.notes] == [("run", 0), ("stand-in", 20)]


def test_a_rank_that_never_stepped_counts_as_one_step():
    rank = RankRecords.build(
        rank=0, records={"kind": [Kind.OPERATOR] * 3}, signatures=[MM], stop_reason="max-operators"
    )
    summary = summarise_trace(Trace.assemble({0: rank}, classes={0: [0]}, groups=[], run=RunFacts(world_size=1)))
    assert summary.flops_per_step == 3 * 1024
    assert summary.classes[0].stop_reason == "max-operators"
    assert summary.traffic == ()


def test_the_summary_is_json_and_the_same_after_loading(summary: CaptureSummary, tmp_path: Path):
    trace = Trace.assemble({0: make_rank(0)}, classes={0: [0, 2]}, groups=[WORLD, *PAIRS], run=RUN)
    trace.save(tmp_path / "t")
    assert summarise_trace(Trace.load(tmp_path / "t")) == summarise_trace(trace)
    data = json.loads(json.dumps(summary.to_dict()))
    assert data == summary.to_dict()
    assert data["traffic"][0]["op"] == "all_reduce"
    assert data["classes"][0]["memory"]["capacity_bytes"] == 2**30


def test_totals_beyond_sixty_four_bits_are_exact():
    huge = MM.text.replace("[8,4]", f"[{2**40},4]").replace("[4,16]", f"[4,{2**20}]")
    rank = RankRecords.build(rank=0, records={"kind": [Kind.OPERATOR]}, signatures=[huge])
    trace = Trace.assemble({0: rank}, classes={0: [0, 1]}, groups=[], run=RunFacts(world_size=2))
    assert summarise_trace(trace).flops_per_step == 2 * 2 * 4 * 2**60


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((), "none"),
        ((5,), "5"),
        ((0, 1, 2, 7), "0-2, 7"),
        (tuple(range(0, 20, 2)), "0, 2, 4, ... (10 ranks)"),
    ],
)
def test_ranks_are_written_as_ranges(ranks: tuple[int, ...], text: str):
    assert format_ranks(ranks) == text
