"""The group registry: every process group of the run, as the captured ranks announce them.

Ranks name a group by its place in their own list ("my third group"). The registry gives each group of the run one
number, its *entry*, so that "my third group" of one rank and "my second" of another are known to be the same; and it
knows, for ranks that do not run, which place a group would have in their lists. Groups that have the same members in
the same order are told apart by their occurrence: the second such group of one rank is the second of every rank.

A run on 12,288 ranks makes thousands of groups and every captured rank announces all of them, so announcements arrive
as chunks of raw integers, and a chunk already seen (after the same chunks) costs a dictionary lookup.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from sandtable.trace.groups import GroupTable
from sandtable.vgpu.protocol import GroupsMade

__all__ = ["UNNAMED_GROUP", "GroupFamily", "GroupRegistry"]

UNNAMED_GROUP = "group"
"""The name of a group that the script gave none."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class GroupFamily:
    """Groups made alike (all tensor-parallel groups, say), all of one size, one per row of `members`."""

    entries: tuple[int, ...]
    members: Ints

    @property
    def size(self) -> int:
        return int(self.members.shape[1])

    def positions(self, world_size: int) -> Ints:
        """Return the position of every rank in its group of the family; -1 for ranks in none."""
        position = np.full(world_size, -1, dtype=np.int64)
        position[self.members] = np.arange(self.size)
        return position


@dataclass(slots=True, eq=False)
class _State:
    """What ranks that announced the same chunks so far have in common: the groups of the last chunk, and so on."""

    counts: dict[bytes, int] = field(default_factory=dict)
    """By members, how many groups had these in all chunks."""
    entries: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    members: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """The members of all groups, one group behind the other; `entry_of` holds the entry of each."""
    entry_of: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    following: dict[GroupsMade, "_State"] = field(default_factory=dict)


class GroupRegistry:
    """All groups announced so far, in the order they were first seen."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.names: list[str] = []
        self.members: list[Ints] = []
        self._positions: list[dict[int, int] | None] = []
        self._places: list[Ints] = []
        self._is_global = np.empty(0, dtype=np.bool_)
        self._numbers: dict[tuple[bytes, int], int] = {}
        self._num_groups_of = np.zeros(world_size, dtype=np.int64)
        self._root = _State()
        self._states: dict[int, _State] = {}
        self._own: dict[int, list[int]] = {}
        self._place_of: dict[int, dict[int, int]] = {}
        self._families: tuple[GroupFamily, ...] | None = None

    def __len__(self) -> int:
        return len(self.members)

    def announce(self, rank: int, chunk: GroupsMade) -> bool:
        """Note that `rank` saw these groups made, after those it announced before; return whether any is new."""
        before = len(self.members)
        state = self._states.get(rank, self._root)
        following = state.following.get(chunk)
        if following is None:
            following = state.following[chunk] = self._read(chunk, state.counts)
        self._states[rank] = following
        own, place_of = self._own.setdefault(rank, []), self._place_of.setdefault(rank, {})
        mine = following.entry_of[following.members == rank]
        for entry in mine.tolist():
            place_of[entry] = len(own)
            own.append(entry)
        was_global = self._is_global[mine]
        self._is_global[following.entries] = True
        self._is_global[mine] = was_global
        return len(self.members) > before

    def forget(self, rank: int) -> None:
        """Drop what `rank` announced, because it will run again; the groups stay known."""
        for table in (self._states, self._own, self._place_of):
            table.pop(rank, None)

    def own(self, rank: int) -> Sequence[int]:
        """Return the entries of a captured rank's own list of groups."""
        return self._own.get(rank, ())

    def place(self, rank: int, entry: int) -> int | None:
        """Return the place of `entry` in a captured rank's own list; None if the rank has not announced it (yet)."""
        return self._place_of.get(rank, {}).get(entry)

    def presumed_places(self, entry: int) -> Ints:
        """Return the place of `entry` in each member's own list, in member order, judging by all known groups."""
        return self._places[entry]

    def is_global(self, entry: int) -> bool:
        """Return whether a rank outside the group saw it made: then every rank did, and `presumed_places` is exact."""
        return bool(self._is_global[entry])

    def position(self, entry: int, rank: int) -> int | None:
        """Return the position of `rank` within the group."""
        positions = self._positions[entry]
        if positions is None:
            positions = {member: k for k, member in enumerate(self.members[entry].tolist())}
            self._positions[entry] = positions
        return positions.get(rank)

    def positions(self, entry: int) -> Ints:
        """Return the position of every rank in its group of the family of `entry`; -1 for ranks in none."""
        family = next(family for family in self.families() if entry in family.entries)
        return family.positions(self.world_size)

    def in_order(self) -> list[int]:
        """Return all entries in an order that contains each captured rank's own list.

        The order of first announcement does not, where only members see a group made: a group that one rank makes
        between two that all make is announced after both.
        """
        following: dict[int, set[int]] = {}
        num_before = [0] * len(self.members)
        for own in self._own.values():
            for entry, later in pairwise(own):
                if later not in following.setdefault(entry, set()):
                    following[entry].add(later)
                    num_before[later] += 1
        ready = [entry for entry, count in enumerate(num_before) if not count]
        order: list[int] = []
        while ready:
            order.append(heappop(ready))
            for later in following.get(order[-1], ()):
                num_before[later] -= 1
                if not num_before[later]:
                    heappush(ready, later)
        # Ranks that made the same groups in different orders have no common one.
        return order if len(order) == len(self.members) else list(range(len(self.members)))

    def table(self) -> GroupTable:
        """Return all groups, `in_order`."""
        order = self.in_order()
        members = [self.members[entry] for entry in order]
        offsets = np.cumsum([0, *map(len, members)], dtype=np.int64)
        names = [self.names[entry] for entry in order]
        return GroupTable.of_columns(names, np.concatenate([np.empty(0, dtype=np.int64), *members]), offsets)

    def has_private(self) -> bool:
        """Return whether some captured rank did not see a group made (`use_local_synchronization`).

        Then the groups of ranks that do not run are unknown.
        """
        captured = self._own.keys()
        unseen = [
            entry
            for entry, is_global in enumerate(self._is_global.tolist())
            if not is_global and len(self.members[entry]) < self.world_size
        ]
        return any(captured - set(self.members[entry].tolist()) for entry in unseen)

    def families(self) -> tuple[GroupFamily, ...]:
        """Return groups that belong together: equal up to a shift of the ranks, or else equal in size and place."""
        if self._families is None:
            self._families = self._make_families()
        return self._families

    def _read(self, chunk: GroupsMade, earlier_counts: Mapping[bytes, int]) -> _State:
        counts = dict(earlier_counts)
        members = np.frombuffer(chunk.ranks, dtype=np.int32)
        sizes = np.frombuffer(chunk.sizes, dtype=np.int32)
        num_before, width, start = len(self.members), members.itemsize, 0
        entries: list[int] = []
        for end in (np.cumsum(sizes) * width).tolist():
            key = chunk.ranks[start:end]
            start = end
            occurrence = counts.get(key, 0)
            counts[key] = occurrence + 1
            entries.append(self._numbers.setdefault((key, occurrence), len(self._numbers)))
        state = _State(
            counts=counts,
            entries=np.array(entries, dtype=np.int64),
            members=members.astype(np.int64),
            entry_of=np.repeat(entries, sizes),
        )
        is_new = state.entries >= num_before
        if is_new.any():
            names = [name for name, entry in zip(chunk.names, entries, strict=True) if entry >= num_before]
            self._add(names, state.members[np.repeat(is_new, sizes)], sizes[is_new])
        return state

    def _add(self, names: Sequence[str], members: Ints, sizes: npt.NDArray[np.int32]) -> None:
        """Add new groups; `members` holds those of all of them, one group behind the other."""
        places = self._num_groups_of[members] + _occurrences(members)
        self._num_groups_of += np.bincount(members, minlength=self.world_size)
        ends = np.cumsum(sizes).tolist()
        for start, end in zip([0, *ends], ends, strict=False):
            self.members.append(members[start:end])
            self._places.append(places[start:end])
        self.names.extend(names)
        self._positions.extend([None] * len(names))
        self._is_global = np.append(self._is_global, np.zeros(len(names), dtype=np.bool_))
        self._families = None

    def _make_families(self) -> tuple[GroupFamily, ...]:
        shapes: dict[object, list[int]] = {}
        for entry, members in enumerate(self.members):
            shape = (members - members[0]).tobytes() if len(members) > 1 else b""
            shapes.setdefault(shape, []).append(entry)
        families: dict[object, list[int]] = {}
        for shape, entries in shapes.items():
            alone = len(entries) == 1
            key = (len(self.members[entries[0]]), int(self._places[entries[0]][0])) if alone else shape
            families.setdefault(key, []).extend(entries)
        return tuple(
            GroupFamily(tuple(entries), np.stack([self.members[entry] for entry in entries]))
            for entries in families.values()
        )


def _occurrences(values: Ints) -> Ints:
    """Return for each value how often it stands further to the left: 0, 0, 1, 0, 2 for 5, 7, 5, 3, 5."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    is_first = np.append(True, ordered[1:] != ordered[:-1])
    first_places = np.flatnonzero(is_first)[np.cumsum(is_first) - 1]
    occurrences = np.empty_like(values)
    occurrences[order] = np.arange(len(values)) - first_places
    return occurrences
