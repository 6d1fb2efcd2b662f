"""Traces: put together, kept in one file, and asked about any rank."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trace.building import ADD, MM, PAIRS, RUN, WORLD, make_rank, spec

from sandtable.errors import TraceError
from sandtable.trace import (
    FILE_NAME,
    Group,
    Kind,
    Line,
    Note,
    Phase,
    RankRecords,
    RunFacts,
    Signature,
    Trace,
)


def make_trace() -> Trace:
    """Ranks 0 and 2 are told by 0; 1 and 3 by 3, which numbered its tables otherwise."""
    return Trace.assemble(
        {0: make_rank(0), 3: make_rank(3, swap_tables=True)},
        classes={3: [1, 3], 0: [0, 2]},
        groups=[WORLD, *PAIRS],
        run=replace(RUN, notes=(Note("run", "of the launcher"),), captured_ranks=(3, 0, 2)),
    )


def test_facts_of_the_run_are_there():
    trace = make_trace()
    assert (trace.world_size, trace.cluster, trace.gpus_per_node) == (4, "dgx-a100", 8)
    assert trace.ranks_per_node == 8, "where it is not said, every GPU has a rank"
    assert trace.command == ("train.py", "--fast")
    assert trace.captured_ranks == (0, 2, 3)
    assert trace.num_steps == 2
    assert trace.wall_seconds == 1.5
    assert [(c.representative, c.ranks) for c in trace.classes] == [(0, (0, 2)), (3, (1, 3))]


def test_notes_of_ranks_are_gathered_once_and_point_at_lines_of_the_trace():
    run_note, rank_note = make_trace().notes
    assert run_note == Note("run", "of the launcher")
    assert make_trace().lines[rank_note.line] == Line("train.py", 20, "log")


def test_signatures_and_lines_are_kept_once_for_all_classes():
    trace = make_trace()
    assert sorted(trace.signatures.texts) == sorted([MM.text, ADD.text])
    assert len(trace.lines) == 3
    first, second = (rank_class.records.records for rank_class in trace.classes)
    assert first == second


def test_digests_survive_assembling_saving_and_loading(tmp_path: Path):
    trace = make_trace()
    trace.save(tmp_path / "t")
    loaded = Trace.load(tmp_path / "t")
    digests = {make_rank().digest(), *(t.rank(r).digest() for t in (trace, loaded) for r in range(4))}
    assert len(digests) == 1


def test_a_saved_trace_comes_back_as_it_was(tmp_path: Path):
    trace = make_trace()
    trace.save(tmp_path / "t")
    assert_equal(Trace.load(tmp_path / "t"), trace)


def test_a_directory_holds_the_trace_under_its_usual_name(tmp_path: Path):
    make_trace().save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]
    assert Trace.load(tmp_path).world_size == 4


def test_the_same_trace_gives_the_same_bytes(tmp_path: Path):
    make_trace().save(tmp_path / "one")
    Trace.load(tmp_path / "one").save(tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_rank_that_was_not_captured_sees_its_own_groups_and_peers():
    trace = make_trace()
    assert [trace.rank(r).group(1) for r in range(4)] == [PAIRS[0], PAIRS[1], PAIRS[0], PAIRS[1]]
    assert trace.rank(2).group(0) == WORLD
    assert [trace.rank(r).peer(1) for r in range(4)] == [2, 3, 0, 1]
    assert trace.rank(2).peer(0) is None


def test_the_root_of_a_rooted_collective_is_a_position_in_the_group():
    rank = make_rank(1, call_ops=["all_reduce", "broadcast"])
    trace = Trace.assemble({1: rank}, classes={1: [1, 0]}, groups=[WORLD, *PAIRS], run=RUN)
    assert trace.rank(1).peer(1) == 3
    assert trace.rank(0).peer(1) == 2


def test_a_representative_keeps_the_groups_it_saw_itself(tmp_path: Path):
    own = Group("private", (0, 3))
    rank = make_rank(0, groups=[WORLD, own])
    Trace.assemble({0: rank}, classes={0: [0]}, groups=[WORLD, *PAIRS], run=RUN).save(tmp_path / "t")
    assert Trace.load(tmp_path / "t").rank(0).group(1) == own


def test_operators_come_in_order_with_signature_phase_and_line():
    operators = list(make_trace().rank(1).operators())
    assert [op.signature for op in operators] == [ADD, MM, ADD, MM, ADD]
    assert [op.phase for op in operators[:3]] == [Phase.FORWARD, Phase.FORWARD, Phase.BACKWARD]
    assert operators[0].line == Line("train.py", 10, "main")


def test_collectives_come_in_order_with_everything_decoded():
    first, second, *_ = make_trace().rank(3).collectives()
    assert (first.op, first.group, first.reduce, first.peer) == ("all_reduce", WORLD, "sum", None)
    assert (first.bytes_in, first.bytes_out, first.dtype, first.stream) == (1024, 1024, "float32", 1)
    assert (second.op, second.group, second.peer, second.row) == ("send", PAIRS[1], 1, 1)
    assert second.line == Line("train.py", 10, "main")


def test_steps_are_slices_that_operators_and_collectives_take():
    rank = make_trace().rank(0)
    first, second = rank.step_slices()
    assert (first.start, second.stop) == (0, len(rank.records))
    assert rank.records.kind[first.stop - 1] == Kind.STEP
    assert [op.signature for op in rank.operators(second)] == [MM, ADD]
    assert [call.seq for call in rank.collectives(second)] == [1, 1]


def test_records_after_the_last_step_belong_to_no_step():
    records = RankRecords.build(rank=0, records={"kind": [Kind.STEP, Kind.ALLOC], "ref": [0, 0]})
    trace = Trace.assemble({0: records}, classes={0: [0]}, groups=[], run=RunFacts(world_size=1))
    assert trace.rank(0).step_slices() == (slice(0, 1),)


def test_the_memory_timeline_adds_allocations_and_takes_frees_away():
    kinds = [Kind.ALLOC, Kind.OPERATOR, Kind.ALLOC, Kind.FREE, Kind.SEGMENT_ALLOC]
    records = RankRecords.build(rank=0, records={"kind": kinds, "value": [512, 0, 1024, 512, 2**21]}, signatures=[MM])
    trace = Trace.assemble({0: records}, classes={0: [0]}, groups=[], run=RunFacts(world_size=1))
    index, allocated = trace.rank(0).memory_timeline()
    assert index.tolist() == [0, 2, 3]
    assert allocated.tolist() == [512, 1536, 1024]


def test_a_rank_outside_the_world_is_refused():
    with pytest.raises(TraceError, match="rank must be between 0 and 3, but got 4"):
        make_trace().rank(4)


def test_a_rank_of_no_class_is_refused_with_the_remedy():
    trace = Trace.assemble({0: make_rank(0)}, classes={0: [0]}, groups=[WORLD, *PAIRS], run=RUN)
    with pytest.raises(TraceError, match="--ranks auto"):
        trace.rank(1)


@pytest.mark.parametrize(
    ("classes", "rule"),
    [
        ({0: [0, 1], 3: [1, 3]}, "in one class at most"),
        ({0: [0, 4]}, "in one class at most"),
        ({0: [1]}, "must be captured and be in its class"),
        ({2: [2]}, "must be captured and be in its class"),
    ],
)
def test_classes_that_make_no_sense_are_refused(classes: dict[int, list[int]], rule: str):
    with pytest.raises(TraceError, match=rule):
        Trace.assemble({0: make_rank(0), 3: make_rank(3)}, classes=classes, groups=[], run=RUN)


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path):
    make_rank().save(tmp_path / "rank")
    with pytest.raises(TraceError, match="sandtable run --out"):
        Trace.load(tmp_path / "rank")


texts = st.text(st.characters(codec="utf-8"), max_size=8)
shapes = st.lists(st.integers(0, 2**40), max_size=4).map(tuple)
signatures = st.builds(
    lambda op, ins, outs: Signature(op, tuple(spec(*s) for s in ins), tuple(spec(*s) for s in outs)),
    texts,
    st.lists(shapes, max_size=3),
    st.lists(shapes, max_size=2),
)


@st.composite
def ranks(draw: st.DrawFn, rank: int = 0) -> RankRecords:
    table = draw(st.lists(signatures, min_size=1, max_size=5))
    lines = [Line(), *draw(st.lists(st.builds(Line, texts, st.integers(0, 10**6), texts), max_size=4))]
    count, num_calls = draw(st.integers(0, 30)), draw(st.integers(0, 10))
    kinds = draw(st.lists(st.sampled_from(Kind), min_size=count, max_size=count))
    column = st.lists(st.integers(0, 4), min_size=count, max_size=count)
    refs = [ref % len(table) if kind == Kind.OPERATOR else ref for kind, ref in zip(kinds, draw(column), strict=True)]
    values = draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=count, max_size=count))
    small = st.lists(st.integers(0, 1), min_size=num_calls, max_size=num_calls)
    return RankRecords.build(
        rank=rank,
        records={
            "kind": kinds,
            "ref": refs,
            "stream": draw(column),
            "phase": [phase % len(Phase) for phase in draw(column)],
            "line": [line % len(lines) for line in draw(column)],
            "value": values,
        },
        calls={name: draw(small) for name in ("op", "group", "dtype", "reduce", "splits", "peer", "seq", "batch")},
        signatures=table,
        call_ops=draw(st.permutations(["all_reduce", "send", "recv"])),
        dtypes=draw(st.permutations(["float32", "bfloat16"])),
        reduces=["", "sum"],
        splits=[((), ()), ((1, 2), (2, 1))],
        lines=lines,
        groups=[WORLD, PAIRS[rank % 2]],
        notes=[Note(draw(texts), draw(texts), len(lines) - 1)],
        num_steps=draw(st.integers(0, 9)),
        finished=draw(st.booleans()),
        stop_reason=draw(texts),
        core_seconds=draw(st.floats(0, 1e6)),
    )


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_trace_survives_saving_and_loading(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    first, second = data.draw(ranks(0)), data.draw(ranks(1))
    members = data.draw(st.sampled_from([{0: [0], 1: [1, 2, 3]}, {0: [0, 2], 1: [3, 1]}, {0: [0, 1, 2, 3]}]))
    trace = Trace.assemble({0: first, 1: second}, classes=members, groups=[WORLD, *PAIRS], run=RUN)
    path = tmp_path_factory.mktemp("trace") / "t"
    trace.save(path)
    loaded = Trace.load(path)
    assert_equal(loaded, trace)
    assert loaded.rank(0).digest() == first.digest()
    if 1 in members:
        assert loaded.rank(1).digest() == second.digest()
    operators = [first.signatures[int(ref)] for ref in first.records.ref[first.records.kind == Kind.OPERATOR]]
    assert [op.signature for op in loaded.rank(0).operators()] == operators


def test_a_large_trace_opens_in_milliseconds_and_reads_only_what_is_asked_for(tmp_path: Path):
    trace = make_large(tp=8, pp=16, dp=96, count=50_000)
    trace.save(tmp_path / "t")
    assert (tmp_path / "t").stat().st_size < 16 * 2**20

    def opening() -> float:
        start = time.perf_counter()
        loaded = Trace.load(tmp_path / "t")
        assert [group.size for group in loaded.rank(9_999).groups] == [12_288, 8, 96, 16]
        return time.perf_counter() - start

    assert min(opening() for _ in range(3)) < 0.1
    loaded = Trace.load(tmp_path / "t")
    assert "records" not in vars(loaded.classes[3])

    def reading(index: int) -> float:
        start = time.perf_counter()
        assert len(loaded.classes[index].records.records) == 50_000
        return time.perf_counter() - start

    assert min(reading(index) for index in range(4)) < 0.05


def make_large(*, tp: int, pp: int, dp: int, count: int) -> Trace:
    world = tp * pp * dp
    stage = world // pp
    groups = [Group("world", tuple(range(world)))]
    groups += [Group(f"tp{i}", tuple(range(i * tp, i * tp + tp))) for i in range(world // tp)]
    groups += [
        Group(f"dp{s}.{i}", tuple(range(s * stage + i, (s + 1) * stage, tp))) for s in range(pp) for i in range(tp)
    ]
    groups += [Group(f"pp{i}", tuple(range(i, world, stage))) for i in range(stage)]
    rng = np.random.default_rng(0)
    texts = [Signature("aten::mm", (spec(n, 8), spec(8, 4)), (spec(n, 4),)).text for n in range(2_000)]
    columns = {
        "kind": rng.choice([Kind.OPERATOR, Kind.ALLOC, Kind.FREE, Kind.SEGMENT_ALLOC], count),
        "ref": np.arange(count) % 2_000,
        "line": np.arange(count) % 50,
        "value": rng.integers(0, 1_000, count) * 512,
    }
    lines = [Line(), *(Line("train.py", n, "f") for n in range(49))]
    representatives = [s * stage for s in range(pp)]

    def own(rank: int) -> list[Group]:
        return [group for group in groups if rank in group.ranks]

    records = {
        r: RankRecords.build(rank=r, records=columns, signatures=texts, lines=lines, groups=own(r))
        for r in representatives
    }
    classes = {r: range(r, r + stage) for r in representatives}
    return Trace.assemble(records, classes=classes, groups=groups, run=RunFacts(world_size=world))


def assert_equal(one: Trace, other: Trace) -> None:
    assert one.run == other.run
    assert one.groups == other.groups
    assert one.signatures == other.signatures
    assert one.lines == other.lines
    assert [(c.representative, c.ranks) for c in one.classes] == [(c.representative, c.ranks) for c in other.classes]
    assert [c.records for c in one.classes] == [c.records for c in other.classes]
