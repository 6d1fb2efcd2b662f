"""The clock once more, the slow and plain way: the end of everything by recursion over what it depends on.

Without contention (nothing shares links or multiprocessors) this must agree with the event clock to the nanosecond.
"""

import sys
from functools import cache

from sandtable.engine.operator_table import Costs
from sandtable.trace import Kind, RankRecords

sys.setrecursionlimit(100_000)


class Reference:
    """Ranks that all meet in one group; `call_ns` is what a call takes once everybody is there."""

    def __init__(self, ranks: list[RankRecords], costs: Costs, call_ns: int) -> None:
        self.ranks, self.costs, self.call_ns = ranks, costs, call_ns
        self.end = cache(self._end)
        self.issue = cache(self._issue)

    def _kind(self, rank: int, row: int) -> Kind:
        return Kind(int(self.ranks[rank].records.kind[row]))

    def _host(self, rank: int, row: int) -> float:
        records, costs = self.ranks[rank].records, self.costs
        kind = self._kind(rank, row)
        if kind == Kind.OPERATOR:
            return float(costs.host_ns[records.phase[row], records.ref[row]])
        if kind == Kind.COLLECTIVE:
            return costs.call_host_ns
        return 0.0 if kind in (Kind.WAIT, Kind.STEP) else costs.mark_host_ns

    def _issue(self, rank: int, row: int) -> float:
        """When the host comes to a row."""
        if row == 0:
            return 0.0
        before = self.issue(rank, row - 1)
        if self._kind(rank, row - 1) == Kind.HOST_SYNC:
            stream = self.ranks[rank].records.stream[row - 1]
            last = self._before_on_stream(rank, row - 1, int(stream))
            before = max(before, self.end(rank, last) if last is not None else 0.0)
        return before + self._host(rank, row - 1)

    def _before_on_stream(self, rank: int, row: int, stream: int) -> int | None:
        records = self.ranks[rank].records
        rows = [
            k for k in range(row) if records.stream[k] == stream and records.kind[k] != Kind.HOST_SYNC
        ]  # fmt: skip
        return rows[-1] if rows else None

    def _arrival(self, rank: int, row: int) -> float:
        return max(self._free(rank, row), self.issue(rank, row) + self._host(rank, row))

    def _free(self, rank: int, row: int) -> float:
        last = self._before_on_stream(rank, row, int(self.ranks[rank].records.stream[row]))
        return self.end(rank, last) if last is not None else 0.0

    def _end(self, rank: int, row: int) -> float:
        records = self.ranks[rank].records
        kind, ref = self._kind(rank, row), int(records.ref[row])
        if kind == Kind.OPERATOR:
            ready = self.issue(rank, row) + self._host(rank, row) + self.costs.launch_latency_ns
            return max(self._free(rank, row), ready) + float(self.costs.work_ns[ref])
        if kind == Kind.COLLECTIVE:
            return max(self._arrival(k, self._row_of_call(k, ref)) for k in range(len(self.ranks))) + self.call_ns
        if kind == Kind.WAIT:
            return max(self._free(rank, row), self.issue(rank, row), self.end(rank, self._row_of_call(rank, ref)))
        if kind == Kind.EVENT_WAIT:
            marks = [k for k in range(row) if records.kind[k] == Kind.EVENT_RECORD and records.ref[k] == ref]
            event = self.end(rank, marks[-1]) if marks else 0.0
            return max(self._free(rank, row), self.issue(rank, row), event)
        return max(self._free(rank, row), self.issue(rank, row))

    def _row_of_call(self, rank: int, call: int) -> int:
        records = self.ranks[rank].records
        return next(
            k for k in range(len(records)) if records.kind[k] == Kind.COLLECTIVE and int(records.ref[k]) == call
        )
