"""The group book: every process group of the run, as the captured ranks announce them.

Ranks name a group by its place in their own list ("my third group"). The book gives each group of the run one number,
its *entry*, so that "my third group" of one rank and "my second" of another are known to be the same; and it knows, for
ranks that do not run, which place a group would have in their lists. Groups that have the same members in the same
order are told apart by their occurrence: the second such group of one rank is the second of every rank.

A run on 12,288 ranks makes thousands of groups and every captured rank announces all of them, so announcements arrive
as chunks of raw integers, and a chunk already seen (after the same chunks) costs a dictionary lookup.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np
import numpy.typing as npt

__all__ = ["Chunk", "Family", "GroupBook"]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some groups in the order a rank saw them made: names, and sizes and members as raw 32-bit integers."""

    names: tuple[str, ...]
    sizes: bytes
    ranks: bytes

    @classmethod
    def of(cls, groups: Iterable[tuple[str, Sequence[int]]]) -> "Chunk":
        listed = list(groups)
        ranks = [np.asarray(members, dtype=np.int32) for _, members in listed]
        return cls(
            tuple(name for name, _ in listed),
            np.array([len(members) for members in ranks], dtype=np.int32).tobytes(),
            b"".join(members.tobytes() for members in ranks),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """Groups made alike (all tensor-parallel groups, say), one a row of `members`, all of one size."""

    entries: tuple[int, ...]
    members: Ints

    @property
    def size(self) -> int:
        return int(self.members.shape[1])


@dataclass(slots=True, eq=False)
class _State:
    """What ranks that announced the same chunks so far have in common."""

    counts: Counter[bytes] = field(default_factory=Counter)
    entries: list[int] = field(default_factory=list)
    by_rank: dict[int, list[int]] = field(default_factory=dict)
    following: dict[Chunk, "_State"] = field(default_factory=dict)


class GroupBook:
    """All groups announced so far, in the order they were first seen."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.names: list[str] = []
        self.members: list[Ints] = []
        self._positions: list[dict[int, int] | None] = []
        self._places: list[Ints] = []
        self._global: list[bool] = []
        self._numbers: dict[tuple[bytes, int], int] = {}
        self._num_groups_of = np.zeros(world_size, dtype=np.int64)
        self._root = _State()
        self._states: dict[int, _State] = {}
        self._own: dict[int, list[int]] = {}
        self._place_of: dict[int, dict[int, int]] = {}
        self._families: tuple[Family, ...] | None = None

    def __len__(self) -> int:
        return len(self.members)

    def announce(self, rank: int, chunk: Chunk) -> bool:
        """Notes that `rank` saw these groups made, after those it announced before; True if any is new to the book."""
        before = len(self.members)
        state = self._states.get(rank, self._root)
        following = state.following.get(chunk)
        if following is None:
            following = state.following[chunk] = self._read(chunk, state.counts)
        self._states[rank] = following
        own, place_of = self._own.setdefault(rank, []), self._place_of.setdefault(rank, {})
        mine = following.by_rank.get(rank, [])
        for entry in mine:
            place_of[entry] = len(own)
            own.append(entry)
        if len(mine) < len(following.entries):
            for entry in set(following.entries).difference(mine):
                self._global[entry] = True
        return len(self.members) > before

    def forget(self, rank: int) -> None:
        """Drops what `rank` announced, for it is about to run again; the groups stay known."""
        for table in (self._states, self._own, self._place_of):
            table.pop(rank, None)

    def own(self, rank: int) -> Sequence[int]:
        """The entries of a captured rank's own list of groups."""
        return self._own.get(rank, ())

    def place(self, rank: int, entry: int) -> int | None:
        """Where `entry` stands in a captured rank's own list; None if it has not announced it (yet)."""
        return self._place_of.get(rank, {}).get(entry)

    def presumed_places(self, entry: int) -> Ints:
        """Where `entry` stands in each member's own list, in member order, going by all groups known."""
        return self._places[entry]

    def is_global(self, entry: int) -> bool:
        """Whether some rank outside the group saw it made: then every rank did, and `presumed_places` is exact."""
        return self._global[entry]

    def position(self, entry: int, rank: int) -> int | None:
        """The position of `rank` within the group."""
        positions = self._positions[entry]
        if positions is None:
            positions = {member: k for k, member in enumerate(self.members[entry].tolist())}
            self._positions[entry] = positions
        return positions.get(rank)

    def in_order(self) -> list[int]:
        """All entries in an order of which each captured rank's own list is a part.

        The first announcement is no such order where groups are told to their members only: one that a rank makes for
        itself between two that all make is heard of after both.
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

    def has_private(self) -> bool:
        """Whether some captured rank did not see a group made (`use_local_synchronization`).

        Then nobody knows which groups the ranks that do not run would make.
        """
        captured = self._own.keys()
        unseen = [
            entry
            for entry, is_global in enumerate(self._global)
            if not is_global and len(self.members[entry]) < self.world_size
        ]
        return any(captured - set(self.members[entry].tolist()) for entry in unseen)

    def families(self) -> tuple[Family, ...]:
        """Groups that belong together: equal up to a shift of the ranks, or else equal in size and place."""
        if self._families is None:
            self._families = self._make_families()
        return self._families

    def _read(self, chunk: Chunk, counts: Counter[bytes]) -> _State:
        state = _State(counts=counts.copy())
        ranks = np.frombuffer(chunk.ranks, dtype=np.int32)
        ends = np.cumsum(np.frombuffer(chunk.sizes, dtype=np.int32))
        start = 0
        for name, end in zip(chunk.names, ends.tolist(), strict=True):
            members = ranks[start:end]
            start = end
            key = members.tobytes()
            entry = self._numbers.get((key, state.counts[key]))
            if entry is None:
                entry = self._add(name, members.astype(np.int64), (key, state.counts[key]))
            state.counts[key] += 1
            state.entries.append(entry)
            for rank in members.tolist():
                state.by_rank.setdefault(rank, []).append(entry)
        return state

    def _add(self, name: str, members: Ints, number: tuple[bytes, int]) -> int:
        entry = self._numbers[number] = len(self.members)
        self.names.append(name)
        self.members.append(members)
        self._positions.append(None)
        self._places.append(self._num_groups_of[members])
        self._global.append(False)
        self._num_groups_of[members] += 1
        self._families = None
        return entry

    def _make_families(self) -> tuple[Family, ...]:
        shapes: dict[object, list[int]] = {}
        for entry, members in enumerate(self.members):
            shapes.setdefault((members - members[0]).tobytes(), []).append(entry)
        families: dict[object, list[int]] = {}
        for shape, entries in shapes.items():
            alone = len(entries) == 1
            key = (len(self.members[entries[0]]), int(self._places[entries[0]][0])) if alone else shape
            families.setdefault(key, []).extend(entries)
        return tuple(
            Family(tuple(entries), np.stack([self.members[entry] for entry in entries]))
            for entries in families.values()
        )
