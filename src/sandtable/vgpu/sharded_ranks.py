"""Sharded ranks: components whose ranks differ in where flat buffers are cut, seen as one parameterized class.

The parameter is a rank's row in the `PieceTable`; its work is a function of that row (`shard_work.py`). Some ranks run
to find and verify the function: those with the most and the fewest of everything, and others spread between. After that
the ranks are one class, and the rank whose pieces cost most represents it, because the others wait for it.
"""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sandtable.trace.records import RankRecords
from sandtable.vgpu.group_registry import GroupRegistry
from sandtable.vgpu.shard_work import LAUNCH_BYTES, RankWork, ShardExplanation, TypeTotals, explain
from sandtable.vgpu.shards import PieceTable, cut_buffers, piece_table

__all__ = ["MAX_SAMPLES", "ShardReader", "ShardedRanks", "study"]

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_NUM_SAMPLES = 8
"""Captured ranks of a component whose work is to be explained."""

MAX_SAMPLES = 16
"""The same where so many do not decide."""

_NUM_EXPLAINED = 3
"""Components that are explained: the first, the last and one between."""

_EQUAL = 1e-9
"""Costs are equal if they differ by at most this share."""


class ShardReader:
    """Reads the records of captured ranks that hold shards of flat buffers, each once."""

    def __init__(self, load: Callable[[int], RankRecords]) -> None:
        self._load = load
        self._work: dict[int, tuple[str, RankWork]] = {}

    def work(self, rank: int, digest: str) -> RankWork:
        """Return the counted records of a rank that ended with this digest."""
        known = self._work.get(rank)
        if known is None or known[0] != digest:
            known = self._work[rank] = digest, RankWork.of(self._load(rank))
        return known[1]


@dataclass(frozen=True, eq=False)
class ShardedRanks:
    """The ranks of a component, what each holds, and the work of those captured."""

    pieces: PieceTable
    work: Mapping[int, RankWork]
    adopted_types: tuple[int, ...] | None = None
    """Types that other components were explained by; then this one is not explained itself."""

    @classmethod
    def of(
        cls, ranks: Ints, work: Mapping[int, RankWork], registry: GroupRegistry, firsts: Iterable[Bools] = ()
    ) -> "ShardedRanks | None":
        """Return the sharded ranks of a component; None if it has no flat buffers, or all ranks hold the same.

        `firsts` tell, for each kind of group, which ranks of the world are the first of theirs.
        """
        first = min(work)
        layouts = {(one.records.flat_buffers, one.records.reduced_buckets) for one in work.values()}
        if len(layouts) > 1:
            return None
        buffers = []
        for cut in cut_buffers(work[first].records):
            positions = registry.positions(registry.own(first)[cut.group])[ranks]
            if (positions < 0).any():
                return None
            buffers.append((cut, positions))
        # A rank that is the only first one could as well be one that logs.
        sides = {side.tobytes(): side for side in (side[ranks] for side in firsts) if 1 < side.sum() < len(ranks) - 1}
        pieces = piece_table(ranks, buffers, work[first].records.reduced_buckets, list(sides.values()))
        return None if pieces.is_even else cls(pieces, work)

    @cached_property
    def explanation(self) -> ShardExplanation:
        """How the work of the captured ranks follows from their pieces."""
        return explain(self.work, self.pieces)

    @property
    def next_ranks(self) -> list[int]:
        """The ranks to capture next, to find and verify the explanation."""
        if self.adopted_types is not None:
            most = self.costliest(self.pieces.ranks)
            return [] if most in self.work else [most]
        wanted = self._on_each_side(self._extremes())[: max(MAX_SAMPLES - len(self.work), 0)]
        captured = set(self.work) | set(wanted)
        is_undecided = not wanted and len(self.work) >= _NUM_SAMPLES and self.explanation.needs_more
        return [*wanted, *self._spread(captured, MAX_SAMPLES if is_undecided else _NUM_SAMPLES)]

    @property
    def types(self) -> tuple[int, ...]:
        """The types of records that follow from the pieces.

        Of a component that adopts its types, also those of as many memory blocks on every rank: which sizes they have
        depends on how they fit between others.
        """
        if self.adopted_types is None:
            return self.explanation.types
        blocks = set[int]().union(*(work.totals.keys() - work.launches for work in self.work.values()))
        calls = {key: {work.totals.get(key, TypeTotals()).calls for work in self.work.values()} for key in blocks}
        return (*self.adopted_types, *(key for key in sorted(blocks) if len(calls[key]) == 1))

    @cached_property
    def digests(self) -> dict[int, str]:
        """Per captured rank, the digest of its work without what follows from its pieces."""
        return {rank: rank_work.digest_without(self.types) for rank, rank_work in self.work.items()}

    @property
    def num_kinds(self) -> int:
        """The number of different kinds of work among the captured ranks, apart from what follows from the pieces."""
        return len(set(self.digests.values()))

    def costs(self, ranks: Ints) -> Floats:
        """Return what the work on the pieces of each of `ranks` costs, in bytes moved."""
        return np.asarray(self._costs[np.searchsorted(self.pieces.ranks, ranks)])

    def costliest(self, ranks: Ints) -> int:
        """Return the one of `ranks` whose pieces cost most, a captured one if several do."""
        costs = self.costs(ranks)
        highest: list[int] = ranks[costs >= costs.max() * (1 - _EQUAL)].tolist()
        return min((rank for rank in highest if rank in self.work), default=highest[0])

    @cached_property
    def _costs(self) -> Floats:
        if self.adopted_types is None:
            return self.explanation.costs
        return (self.pieces.column("pieces") * LAUNCH_BYTES + self.pieces.column("whole")).astype(np.float64)

    @cached_property
    def _order(self) -> Ints:
        """The rows by number of pieces, then by the size of the parameters they are pieces of."""
        return np.lexsort([self.pieces.column("whole"), self.pieces.column("pieces")])

    def _extremes(self) -> list[int]:
        """Return ranks with the most and the fewest of each column, where no captured rank is one."""
        shown = self.pieces.of(sorted(self.work))
        wanted: list[int] = []
        for column in range(len(self.pieces.held_names)):
            values = self.pieces.rows[:, column]
            for extreme in (values.max(), values.min()):
                if extreme not in shown[:, column]:
                    wanted.append(int(self.pieces.ranks[np.flatnonzero(values == extreme)[-1]]))
                    shown = np.vstack([shown, self.pieces.of(wanted[-1:])])
        return wanted

    def _on_each_side(self, wanted: list[int]) -> list[int]:
        """Add ranks so that two are first of their group and two are not, for each kind of group."""
        for is_first in self.pieces.firsts:
            for side in (is_first, ~is_first):
                ranks: list[int] = self.pieces.ranks[side].tolist()
                num_seen = sum(rank in self.work or rank in wanted for rank in ranks)
                unseen = [rank for rank in reversed(ranks) if rank not in self.work and rank not in wanted]
                wanted = [*wanted, *unseen[: max(2 - num_seen, 0)]]
        return wanted

    def _spread(self, captured: AbstractSet[int], enough: int) -> list[int]:
        """Return ranks spread evenly over the numbers of pieces, so that `enough` are captured."""
        left = [rank for rank in self.pieces.ranks[self._order].tolist() if rank not in captured]
        room = min(max(enough - len(captured), 0), len(left))
        return [left[int(place)] for place in np.linspace(0, len(left) - 1, room)]


def study(components: Mapping[int, ShardedRanks]) -> list[tuple[int, ShardedRanks]]:
    """Return what to explain, each with the number of its component.

    Of many components (the stages of a pipeline) only some are explained. The others adopt their types, unless their
    ranks are of more kinds than those explained (the first of a tensor-parallel group, which loads the data, and the
    others) once these are left out.
    """
    keys = sorted(components)
    chosen = {keys[int(place)] for place in np.linspace(0, len(keys) - 1, min(_NUM_EXPLAINED, len(keys)))}
    is_settled = not any(components[key].next_ranks for key in chosen)
    types = tuple(sorted({kind for key in chosen for kind in components[key].types}))
    max_kinds = max((components[key].num_kinds for key in chosen), default=1)
    studied = dict(components)
    for key in set(keys) - chosen:
        adopting = replace(components[key], adopted_types=types)
        if not is_settled or adopting.num_kinds <= max_kinds:
            studied[key] = adopting
    return [(key, studied[key]) for key in keys]
