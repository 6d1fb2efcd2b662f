"""The order of records: it does not depend on which thread was quicker."""

from typing import Any

import numpy as np

from sandtable.trace import Kind
from sandtable.vgpu.ordering import in_order


def ordered(rows: list[tuple[Kind, int, int, int, int]], batches: list[int]) -> tuple[list[tuple[int, int]], list[int]]:
    """`rows` are kind, ref, stream, mark and job; (kind, ref) of each in order, and the batch of each call."""
    kind, ref, stream, mark, job = (np.array(column) for column in zip(*rows, strict=True))
    columns: dict[str, Any] = {"kind": kind, "ref": ref, "stream": stream, "mark": mark, "job": job}
    records, calls = in_order(columns, {"op": np.zeros(len(batches), dtype=int), "batch": np.array(batches)})
    assert "mark" not in records
    return list(zip(records["kind"].tolist(), records["ref"].tolist(), strict=True)), calls["batch"].tolist()


def test_rows_of_a_job_stand_where_it_was_handed_over() -> None:
    call, done, operator = Kind.COLLECTIVE, Kind.WAIT, Kind.OPERATOR
    rows = [(operator, 7, 0, 0, 0), (call, 0, 0, 1, 0), (operator, 8, 0, 2, 0), (call, 1, 5, 1, 1), (done, 1, 5, 1, 1)]
    found, batches = ordered(rows, [0, 3])
    # The job's call is the first now, and what waits for it says so.
    assert found == [(operator, 7), (call, 0), (done, 0), (call, 1), (operator, 8)]
    assert batches == [3, 0]


def test_calls_issued_as_one_stay_together() -> None:
    call, mark = Kind.COLLECTIVE, Kind.EVENT_RECORD
    rows = [(call, 0, 1, 0, 0), (call, 1, 9, 1, 0), (mark, 4, 9, 2, 0), (mark, 5, 1, 3, 0), (call, 2, 1, 4, 0)]
    found, batches = ordered(rows, [6, 0, 6])
    assert found == [(call, 0), (mark, 5), (call, 1), (call, 2), (mark, 4)]
    assert batches == [6, 6, 0]
