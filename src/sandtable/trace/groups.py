"""Groups: which ranks talk to each other.

A run on 12,288 GPUs makes thousands of groups, and every rank is in a handful of them. The table keeps all members in
one array and finds a rank's groups through an index built on first use: a query about one rank takes microseconds.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import overload

import numpy as np
import numpy.typing as npt

__all__ = ["Group", "GroupTable"]

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Group:
    """A process group: its name and its members, in the order of their positions in the group."""

    name: str
    ranks: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.ranks)


class GroupTable(Sequence[Group]):
    """Groups in creation order, stored as columns; `Group` objects are made on demand."""

    names: tuple[str, ...]
    members: Integers
    offsets: Integers

    def __init__(self, groups: Iterable[Group] = ()) -> None:
        listed = tuple(groups)
        sizes = [len(group.ranks) for group in listed]
        self.names = tuple(group.name for group in listed)
        self.offsets = np.cumsum([0, *sizes], dtype=np.int64)
        self.members = np.fromiter(chain.from_iterable(g.ranks for g in listed), dtype=np.int64, count=sum(sizes))

    @classmethod
    def of_columns(cls, names: Sequence[str], members: Integers, offsets: Integers) -> "GroupTable":
        """Make the table whose k-th group is `names[k]` with `members[offsets[k]:offsets[k + 1]]`."""
        table = cls()
        table.names, table.members, table.offsets = tuple(names), members, offsets
        return table

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> Group: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Group, ...]: ...
    def __getitem__(self, index: int | slice) -> Group | tuple[Group, ...]:
        if isinstance(index, slice):
            return tuple(self[k] for k in range(*index.indices(len(self))))
        k = range(len(self.names))[index]
        return Group(self.names[k], tuple(self.members[self.offsets[k] : self.offsets[k + 1]].tolist()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GroupTable) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(self.names)

    def __repr__(self) -> str:
        return f"GroupTable({len(self)} groups)"

    def containing(self, rank: int) -> Integers:
        """Return the indices of the groups that hold `rank`, in creation order: its own list of groups."""
        ranks, owners = self._by_rank
        low, high = np.searchsorted(ranks, (rank, rank + 1))
        return owners[low:high]

    @cached_property
    def _by_rank(self) -> tuple[Integers, Integers]:
        owners = np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.offsets))
        order = np.argsort(self.members, kind="stable")
        return self.members[order], owners[order]
