"""Ordering: records in an order that does not depend on when threads wrote them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sandtable.trace import Kind

__all__ = ["in_order"]

Columns = dict[str, npt.NDArray[Any]]
Rows = npt.NDArray[np.int64]


def in_order(records: Columns, calls: Columns) -> tuple[Columns, Columns]:
    """Put futures where they were submitted, calls in the order of their records, frees in the order of allocation.

    `mark` is the row before which a row of a future belongs, and `job` the future's number; the result has neither.
    """
    records, mark, job = dict(records), records["mark"], records["job"]
    del records["mark"], records["job"]
    order = np.arange(len(job))
    if job.any():
        order = np.lexsort((order, job, job == 0, mark))
    order = _batches_together({name: column[order] for name, column in records.items()}, calls, order)
    if (order[1:] < order[:-1]).any():
        records = {name: column[order] for name, column in records.items()}
        records["ref"], calls = _in_order_of_records(records, calls)
    return _order_frees(records), calls


def _batches_together(records: Columns, calls: Columns, order: Rows) -> Rows:
    """Move what another thread wrote between calls that were issued as one batch behind them."""
    index = np.flatnonzero(records["kind"] == Kind.COLLECTIVE)
    batch = calls["batch"][records["ref"][index]]
    order = order.copy()
    numbers, first, size = np.unique(batch, return_index=True, return_counts=True)
    last = len(batch) - 1 - np.unique(batch[::-1], return_index=True)[1]
    for k in np.flatnonzero((numbers > 0) & (last - first + 1 > size)).tolist():
        between = slice(int(first[k]), int(last[k]))
        foreign = records["stream"][index[between]][batch[between] != numbers[k]]
        span = np.arange(index[first[k]], index[last[k]] + 1)
        is_foreign = np.isin(records["stream"][span], foreign)
        order[span] = order[np.append(span[~is_foreign], span[is_foreign])]
    return order


def _in_order_of_records(records: Columns, calls: Columns) -> tuple[npt.NDArray[Any], Columns]:
    """Renumber calls in the order of their records."""
    rows = records["ref"][records["kind"] == Kind.COLLECTIVE]
    number = np.zeros(len(calls["op"]), dtype=np.uint32)
    number[rows] = np.arange(len(rows), dtype=np.uint32)
    refers = np.isin(records["kind"], (Kind.COLLECTIVE, Kind.WAIT))
    ref = records["ref"].copy()
    ref[refers] = number[ref[refers]]
    return ref, {name: column[rows] for name, column in calls.items()}


def _order_frees(records: Columns) -> Columns:
    """Put blocks that are freed one right after the other in the order in which they were allocated.

    Some of torch's caches are cleared in the order of addresses, which differs from process to process; the state of
    memory after the last of them does not.
    """
    is_free = records["kind"] == Kind.FREE
    rows = np.flatnonzero(is_free)
    run = np.cumsum(~is_free)[rows]
    order = rows[np.lexsort((records["ref"][rows], run))]
    return {name: _moved(column, rows, order) for name, column in records.items()}


def _moved(column: npt.NDArray[Any], to: npt.NDArray[Any], source: npt.NDArray[Any]) -> npt.NDArray[Any]:
    moved = column.copy()
    moved[to] = column[source]
    return moved
