"""View: one rank of a trace, whether it was captured itself or belongs to the class of one that was.

The columns are those of the class's representative; groups and peers are the rank's own.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sandtable.trace.columns import Calls, Records
from sandtable.trace.groups import Group, GroupTable
from sandtable.trace.kinds import P2P_OPS, Kind, Phase
from sandtable.trace.lines import Line
from sandtable.trace.records import MemoryPeaks, RankRecords, Splits
from sandtable.trace.signature import Signature

__all__ = ["Collective", "Operator", "RankClass", "RankView"]


class Operator(NamedTuple):
    """One launched operator."""

    signature: Signature
    stream: int
    phase: Phase
    line: Line


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective or point-to-point call; `index` is its record, `row` its row in `calls`."""

    index: int
    row: int
    op: str
    group: Group
    seq: int
    dtype: str
    bytes_in: int
    bytes_out: int
    peer: int | None
    """The other rank of a point-to-point call or the root of a rooted collective, as a world rank."""
    stream: int
    phase: Phase
    line: Line
    is_async: bool
    batch: int
    reduce: str
    splits: Splits


class RankClass:
    """Ranks that did the same work; one of them, the representative, was captured for all. Columns load on demand."""

    def __init__(self, representative: int, ranks: tuple[int, ...], load: Callable[[], RankRecords]) -> None:
        self.representative = representative
        self.ranks = ranks
        self._load = load

    @property
    def size(self) -> int:
        return len(self.ranks)

    @cached_property
    def records(self) -> RankRecords:
        return self._load()

    @cached_property
    def digest(self) -> str:
        return self.records.digest()

    def __repr__(self) -> str:
        return f"RankClass(representative={self.representative}, {self.size} ranks)"


class RankView:
    """What one rank did. Made by `Trace.rank`."""

    def __init__(self, rank: int, rank_class: RankClass, groups: GroupTable) -> None:
        self.rank = rank
        self.rank_class = rank_class
        self._groups = groups

    def __repr__(self) -> str:
        return f"RankView(rank={self.rank}, representative={self.rank_class.representative})"

    @property
    def records(self) -> Records:
        """The columns of everything the rank did."""
        return self._captured.records

    @property
    def calls(self) -> Calls:
        """The columns of its collective and point-to-point calls."""
        return self._captured.calls

    @property
    def memory(self) -> MemoryPeaks:
        return self._captured.memory

    def signature(self, index: int) -> Signature:
        return self._captured.signatures[index]

    def line(self, index: int) -> Line:
        return self._captured.lines[index]

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The groups that this rank is a member of, in creation order; `calls.group` is an index into them."""
        if self.rank == self.rank_class.representative:
            return self._captured.groups
        return tuple(self._groups[int(index)] for index in self._groups.containing(self.rank))

    def group(self, index: int) -> Group:
        """Return the rank's own group number `index`."""
        return self.groups[index]

    def peer(self, row: int) -> int | None:
        """Return the world rank of the other end or the root of call number `row`; None where there is none."""
        calls = self.calls
        peer = int(calls.peer[row])
        if peer < 0:
            return None
        ranks = self.group(int(calls.group[row])).ranks
        if self._captured.call_ops[int(calls.op[row])] in P2P_OPS:
            return ranks[(ranks.index(self.rank) + peer) % len(ranks)]
        return ranks[peer]

    def digest(self) -> str:
        """Return the hash of the rank's work, equal for equal work."""
        return self.rank_class.digest

    def operators(self, rows: slice = slice(None)) -> Iterator[Operator]:
        """Yield the operators in order, of all records or of a slice such as one of `step_slices`."""
        captured, records = self._captured, self.records
        chosen = np.flatnonzero(records.kind[rows] == Kind.OPERATOR) + rows.indices(len(records))[0]
        columns = (records.ref[chosen], records.stream[chosen], records.phase[chosen], records.line[chosen])
        for ref, stream, phase, line in zip(*(column.tolist() for column in columns), strict=True):
            yield Operator(captured.signatures[ref], stream, Phase(phase), captured.lines[line])

    def collectives(self, rows: slice = slice(None)) -> Iterator[Collective]:
        """Yield the collective and point-to-point calls in order of issue, of all records or of a slice."""
        records = self.records
        start = rows.indices(len(records))[0]
        for index in (np.flatnonzero(records.kind[rows] == Kind.COLLECTIVE) + start).tolist():
            yield self._collective(index)

    def memory_timeline(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the record indices of allocations and frees, and the bytes allocated after each."""
        kind, value = self.records.kind, self.records.value
        index = np.flatnonzero((kind == Kind.ALLOC) | (kind == Kind.FREE))
        change = np.where(kind[index] == Kind.ALLOC, value[index], -value[index])
        return index, np.cumsum(change)

    def step_slices(self) -> tuple[slice, ...]:
        """Return the records of each complete step with its end. The first includes what came before it."""
        ends = np.flatnonzero(self.records.kind == Kind.STEP) + 1
        starts = [0, *ends.tolist()]
        return tuple(slice(start, end) for start, end in zip(starts, ends.tolist(), strict=False))

    def step_slice(self, number: int | None = None) -> slice:
        """Return the records of one step, counted from 1; by default of the last. Without a step, all records."""
        slices = self.step_slices()
        return slices[-1 if number is None else min(number, len(slices)) - 1] if slices else slice(0, len(self.records))

    @property
    def _captured(self) -> RankRecords:
        return self.rank_class.records

    def _collective(self, index: int) -> Collective:
        captured, records, calls = self._captured, self.records, self.calls
        row = int(records.ref[index])
        return Collective(
            index=index,
            row=row,
            op=captured.call_ops[int(calls.op[row])],
            group=self.group(int(calls.group[row])),
            seq=int(calls.seq[row]),
            dtype=captured.dtypes[int(calls.dtype[row])],
            bytes_in=int(calls.bytes_in[row]),
            bytes_out=int(calls.bytes_out[row]),
            peer=self.peer(row),
            stream=int(calls.stream[row]),
            phase=Phase(int(records.phase[index])),
            line=captured.lines[int(calls.line[row])],
            is_async=bool(calls.is_async[row]),
            batch=int(calls.batch[row]),
            reduce=captured.reduces[int(calls.reduce[row])],
            splits=captured.splits[int(calls.splits[row])],
        )
