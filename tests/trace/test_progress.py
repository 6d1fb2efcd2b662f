"""How far each captured rank got, also in runs that ended early."""

from dataclasses import replace

import numpy as np
from tests.trace.building import PAIRS, RUN, WORLD, make_rank

from sandtable.trace import Kind, RankProgress, RankRecords, Records, Trace, progress_of


def first_rows(rank: RankRecords, count: int) -> RankRecords:
    """The rank's records up to a row, as if it had ended there."""
    columns = {name: column[:count] for name, column in rank.records.columns.items()}
    return replace(rank, records=Records(**columns), num_steps=0, stop_reason="error")


def test_each_class_reports_its_steps_operators_and_last_call() -> None:
    trace = Trace.assemble(
        {0: make_rank(0), 1: make_rank(1)}, classes={0: [0, 2], 1: [1, 3]}, groups=[WORLD, *PAIRS], run=RUN
    )
    first, second = progress_of(trace)
    assert first == RankProgress(
        rank=0,
        num_steps=2,
        num_operators=5,
        last_call="send of 256 B to rank 2",
        file="train.py",
        line=10,
        stop_reason=trace.classes[0].records.stop_reason,
    )
    assert second.last_call == "send of 256 B to rank 3"


def test_records_that_stop_in_the_middle_end_with_the_last_call_in_them() -> None:
    whole = make_rank(0)
    row = int(np.flatnonzero(whole.records.kind == Kind.COLLECTIVE)[0])
    trace = Trace.assemble({0: first_rows(whole, row + 1)}, classes={0: [0]}, groups=[WORLD, *PAIRS], run=RUN)
    (only,) = progress_of(trace)
    assert (only.num_steps, only.num_operators, only.stop_reason) == (0, 3, "error")
    assert only.last_call == "all_reduce of 1.00 KiB on world (4 ranks)"


def test_a_rank_without_calls_has_its_last_known_line() -> None:
    trace = Trace.assemble({0: first_rows(make_rank(0), 3)}, classes={0: [0]}, groups=[WORLD, *PAIRS], run=RUN)
    (only,) = progress_of(trace)
    assert (only.last_call, only.file, only.line) == ("", "train.py", 10)


def test_a_rank_without_records_has_no_line() -> None:
    trace = Trace.assemble({0: first_rows(make_rank(0), 0)}, classes={0: [0]}, groups=[WORLD, *PAIRS], run=RUN)
    assert progress_of(trace)[0].line == 0
