"""Records of one rank: made from plain lists, kept in a file, compared by what they did."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.trace.building import ADD, MM, make_rank

from sandtable.errors import TraceError
from sandtable.trace import Calls, Group, Kind, Line, Note, RankRecords, Records


def test_columns_given_as_lists_get_their_types_and_missing_ones_their_defaults():
    calls = Calls.of(op=[3, 1], seq=np.array([0, 1], dtype=np.int64))
    assert calls.op.dtype == np.uint16
    assert calls.seq.dtype == np.uint32
    assert calls.peer.tolist() == [-1, -1]
    assert calls.splits.tolist() == [0, 0]
    assert len(calls) == 2


def test_columns_of_unequal_length_are_refused():
    with pytest.raises(TraceError, match="must have equal length, but ref has 1 rows"):
        Records.of(kind=[0, 1], ref=[0])


def test_a_column_that_does_not_exist_is_refused():
    with pytest.raises(TraceError, match="but got colour"):
        Records.of(kind=[0], colour=[1])


def test_a_value_that_does_not_fit_its_column_is_refused():
    with pytest.raises(TraceError, match="values of column kind must fit uint8"):
        Records.of(kind=[0, 256])


def test_a_rank_comes_back_from_its_file_as_it_was(tmp_path: Path):
    rank = make_rank(1, splits=[((), ()), ((1, 2), (3,))], finished=False, peak_rss_bytes=123)
    rank.save(tmp_path / "rank")
    loaded = RankRecords.load(tmp_path / "rank")
    assert loaded == rank
    assert loaded.digest() == rank.digest()
    assert loaded.signatures[0] == MM
    assert [path.name for path in tmp_path.iterdir()] == ["rank"]


def test_an_empty_rank_comes_back_from_its_file(tmp_path: Path):
    rank = RankRecords.build(rank=5, records={})
    rank.save(tmp_path / "rank")
    assert RankRecords.load(tmp_path / "rank") == rank


def test_the_digest_does_not_depend_on_who_the_rank_is_or_how_it_numbers_things():
    first = make_rank(0)
    other = make_rank(3, swap_tables=True, block=99, event=41, core_seconds=9.0, notes=[])
    assert first.records != other.records
    assert first.digest() == other.digest()


@pytest.mark.parametrize(
    "changes",
    [
        {"signatures": [MM.text, MM]},
        {"lines": [Line(), Line("train.py", 11, "main"), Line("train.py", 20, "log")]},
        {"dtypes": ["bfloat16"]},
        {"call_ops": ["reduce_scatter", "send"]},
        {"reduces": ["", "avg"]},
        {"splits": [((1,), (1,))]},
        {"groups": [Group("world", (0, 1, 2, 3)), Group("larger", (0, 1, 2))]},
    ],
)
def test_the_digest_changes_with_what_a_table_says(changes: dict[str, Any]):
    assert make_rank(**changes).digest() != make_rank().digest()


@pytest.mark.parametrize("column", ["kind", "stream", "phase", "value", "line"])
def test_the_digest_changes_with_every_column_of_the_records(column: str):
    rank = make_rank()
    columns = rank.records.columns
    changed = columns[column].copy()
    changed[2] ^= 1
    other = make_rank(records={**columns, column: changed})
    assert other.digest() != rank.digest()


@pytest.mark.parametrize("column", Calls.dtypes())
def test_the_digest_changes_with_every_column_of_the_calls(column: str):
    tables: dict[str, Any] = {
        "call_ops": ["all_reduce", "send", "recv", "barrier"],
        "dtypes": ["float32", "bfloat16"],
        "reduces": ["", "sum", "avg", "max"],
        "splits": [((), ()), ((1,), (1,))],
        "lines": [Line(), Line("a.py", 1), Line("b.py", 1), Line("c.py", 1)],
        "groups": [Group("a", (0, 1)), Group("b", (0, 1, 2)), Group("c", (0, 1, 2, 3))],
    }
    rank = make_rank(**tables)
    columns = rank.calls.columns
    changed = columns[column].copy()
    changed[1] ^= 1
    assert make_rank(**tables, calls={**columns, column: changed}).digest() != rank.digest()


def test_the_digest_tells_which_event_is_waited_for():
    kinds = [Kind.EVENT_RECORD, Kind.EVENT_RECORD, Kind.EVENT_WAIT]
    first = RankRecords.build(rank=0, records={"kind": kinds, "ref": [5, 6, 5]})
    renumbered = RankRecords.build(rank=0, records={"kind": kinds, "ref": [9, 2, 9]})
    other = RankRecords.build(rank=0, records={"kind": kinds, "ref": [5, 6, 6]})
    assert first.digest() == renumbered.digest()
    assert first.digest() != other.digest()


def test_a_record_that_points_outside_its_table_is_refused():
    rank = RankRecords.build(rank=0, records={"kind": [Kind.OPERATOR], "ref": [1]}, signatures=[ADD])
    with pytest.raises(TraceError, match="signature index of a rank's records must be below 1"):
        rank.digest()


def test_the_digest_of_fifty_thousand_records_takes_milliseconds():
    rng = np.random.default_rng(0)
    count = 50_000
    texts = [MM.text.replace("8", str(n)) for n in range(3_000)]
    columns = {"kind": rng.integers(0, 11, count), "ref": rng.integers(0, 3_000, count), "value": np.arange(count)}
    rank = RankRecords.build(rank=0, records=columns, signatures=texts)
    best = min(_seconds(rank) for _ in range(3))
    assert best < 0.05


def test_notes_and_lines_can_be_made_by_position_or_by_name():
    assert Line("a.py", 3, "f") == Line(file="a.py", line=3, function="f")
    assert Note("kind", "text", 0) == Note(kind="kind", text="text")
    assert str(Line("a.py", 3, "f")) == "a.py:3"


def _seconds(rank: RankRecords) -> float:
    start = time.perf_counter()
    rank.digest()
    return time.perf_counter() - start
