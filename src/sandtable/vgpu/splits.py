"""Splits: which property of a rank decides its work, learnt from as few captured ranks as possible.

Picture the game of twenty questions. Ranks of one class are expected to do the same work; when captured ones differ
(the logging rank reads the loss, the last ranks hold smaller shards) the reason is a simple property: being rank 0,
having local rank 0, being last in a group, standing past some position. Every property that explains what was seen is
a hypothesis with a weight (plain ones weigh more); the next rank to capture is the one on whose outcome the weight of
the hypotheses divides most evenly. What remains is a decision tree whose leaves are classes.

Cost: a question halves the remaining weight, so telling apart H hypotheses takes about log2(H) captured ranks. A
property that decided elsewhere (in another stage of the pipeline) is the first suspect, which saves most questions.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

__all__ = ["Division", "Leaf", "RankProperties", "divide_by_position", "learn", "untried"]

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_NamedRow = tuple[str, Bools, float]
"""A property: its name, the ranks that have it, its weight."""

CONFIDENCE = 0.95
"""A hypothesis is believed when it holds this share of the weight of those that explain what was seen."""

CONFIRMED_POSITIONS = 3
"""A position in groups is believed to decide the work when this many of its values have two captured ranks each."""

FAMILIAR = 100.0
"""The weight of a property that decided in another component is multiplied by this."""

MAX_WORLD_STEPS = 64
"""The number of "ranks from here on" properties over the whole world is limited to this."""


@dataclass(frozen=True, slots=True, eq=False)
class RankProperties:
    """The properties of `ranks`: one row per property, one column per rank. Equal rows are kept once."""

    ranks: Ints
    holds: Bools
    weights: npt.NDArray[np.float64]
    names: tuple[frozenset[str], ...]
    """Per row, the names of the properties that it stands for: the same for all components."""

    @classmethod
    def of(
        cls, ranks: Ints, *, world_size: int, gpus_per_node: int, positions: Sequence[tuple[Ints, int]]
    ) -> "RankProperties":
        """Return all properties of `ranks`.

        `positions` holds, per family of groups, each rank's position in its group (-1 for none) and the group size.
        """
        rows = cls._plain_rows(ranks, world_size, gpus_per_node, positions)
        rows += [(f"local {k}", ranks % gpus_per_node == k, 1.0 / gpus_per_node) for k in range(gpus_per_node)]
        for number, (column, size) in enumerate(positions):
            rows += [(f"position {k} of {number}", column == k, 1.0 / size) for k in range(1, size - 1)]
            rows += [(f"position {k} of {number} or later", column >= k, 2.0 / size) for k in range(2, size - 1)]
        step = max(1, world_size // MAX_WORLD_STEPS)
        rows += [
            (f"rank {bound} or later", ranks >= bound, step / world_size) for bound in range(step, world_size, step)
        ]
        return cls._distinct(ranks, rows)

    @classmethod
    def plain(
        cls, ranks: Ints, *, world_size: int, gpus_per_node: int, positions: Sequence[tuple[Ints, int]]
    ) -> "RankProperties":
        """Return the properties that scripts commonly test: first or last of the world, of the node, of a group."""
        return cls._distinct(ranks, cls._plain_rows(ranks, world_size, gpus_per_node, positions))

    @classmethod
    def _plain_rows(
        cls, ranks: Ints, world_size: int, gpus_per_node: int, positions: Sequence[tuple[Ints, int]]
    ) -> list[_NamedRow]:
        local, node = ranks % gpus_per_node, ranks // gpus_per_node
        last_local, last_node = gpus_per_node - 1, (world_size - 1) // gpus_per_node
        rows: list[_NamedRow] = [
            ("rank 0", ranks == 0, 8.0),
            ("the first", ranks == ranks.min(), 6.0),
            ("the last rank", ranks == world_size - 1, 4.0),
            ("the last", ranks == ranks.max(), 4.0),
            ("local 0", local == 0, 3.0),
            ("node 0", node == 0, 3.0),
            ("the last local", local == last_local, 2.0),
            ("the last node", node == last_node, 2.0),
        ]
        for number, (column, size) in enumerate(positions):
            rows += [
                (f"the first of {number}", column == 0, 3.0),
                (f"the last of {number}", column == size - 1, 3.0),
                (f"in {number}", column >= 0, 3.0),
            ]
        return rows

    @classmethod
    def _distinct(cls, ranks: Ints, rows: Iterable[_NamedRow]) -> "RankProperties":
        weights: dict[bytes, float] = {}
        kept: dict[bytes, Bools] = {}
        names: dict[bytes, set[str]] = {}
        for name, row, weight in rows:
            turned = row if row[0] else ~row
            if turned.all():
                continue
            key = np.packbits(turned).tobytes()
            kept.setdefault(key, turned)
            names.setdefault(key, set()).add(name)
            weights[key] = max(weight, weights.get(key, 0.0))
        holds = np.stack(list(kept.values())) if kept else np.zeros((0, len(ranks)), dtype=np.bool_)
        row_weights = np.array([weights[key] for key in kept], dtype=np.float64)
        return cls(ranks, holds, row_weights, tuple(frozenset(names[key]) for key in kept))

    def among(self, columns: Bools) -> "RankProperties":
        """Return the same properties of some of the ranks."""
        rows = zip(self.names, self.holds, self.weights.tolist(), strict=True)
        named = ((name, row[columns], weight) for names, row, weight in rows for name in sorted(names))
        return self._distinct(self.ranks[columns], named)

    def suspecting(self, names: AbstractSet[str]) -> "RankProperties":
        """Return the same with more weight on properties of these names, which decided elsewhere."""
        factors = np.array([FAMILIAR if row & names else 1.0 for row in self.names], dtype=np.float64)
        return replace(self, weights=self.weights * factors)


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """Ranks expected to do the work of `digest`. Captured ones may differ from it if no property explains them."""

    ranks: Ints
    digest: str


@dataclass(frozen=True, slots=True, eq=False)
class Division:
    """What is known so far: the leaves, and the ranks to capture next. Without such ranks the leaves are final."""

    leaves: tuple[Leaf, ...]
    next_ranks: tuple[int, ...]
    reasons: frozenset[str] = frozenset()
    """The names of the properties that the leaves differ in; none of a property that a single rank has."""


def untried(properties: RankProperties, captured: AbstractSet[int]) -> int | None:
    """Return the rank that differs most from the captured ones in the properties that all of them share."""
    columns = np.array([rank in captured for rank in properties.ranks.tolist()], dtype=np.bool_)
    if columns.all():
        return None
    shown = properties.holds[:, columns]
    shared = shown.all(axis=1) | ~shown.any(axis=1)
    differs = properties.holds[shared] != shown[shared, :1]
    if not differs.any():
        return None
    news = properties.weights[shared] @ differs
    return int(properties.ranks[np.flatnonzero(news >= news.max() - 1e-9)[-1]])


def learn(properties: RankProperties, digests: Mapping[int, str], *, may_ask: bool) -> Division:
    """Divide the ranks of `properties` into leaves by the digests of those captured (at least one)."""
    ranks = properties.ranks
    captured = np.array([rank in digests for rank in ranks.tolist()], dtype=np.bool_)
    seen = [digests[rank] for rank in ranks[captured].tolist()]
    if len(set(seen)) == 1:
        return _pure_leaf(properties, captured, seen[0], may_ask=may_ask)
    split = _best_split(properties, captured, seen)
    if split is None:
        return Division((Leaf(ranks, Counter(seen).most_common(1)[0][0]),), ())
    if may_ask and split.question is not None:
        return Division((), (split.question,))
    parts = [learn(properties.among(side), digests, may_ask=may_ask) for side in (split.side, ~split.side)]
    return Division(
        tuple(leaf for part in parts for leaf in part.leaves),
        tuple(rank for part in parts for rank in part.next_ranks),
        split.reasons.union(*(part.reasons for part in parts)),
    )


def divide_by_position(
    ranks: Ints, digests: Mapping[int, str], *, positions: Sequence[tuple[Ints, int]], max_size: int
) -> Division | None:
    """Divide `ranks` by their position in groups of at most `max_size`, each a class of its own; None if that fails.

    Ranks that hold the experts of a mixture differ like this: every position of the group gets a load of its own. The
    first rank and the last may do more than their position says (they log), so they prove nothing.
    """
    for column, size in sorted(positions, key=lambda position: position[1]):
        if size <= max_size and (column >= 0).all():
            members = {position: ranks[column == position].tolist() for position in range(size)}
            division = _by_position(members, digests, ends={int(ranks[0]), int(ranks[-1])})
            if division is not None:
                return division
    return None


def _by_position(members: Mapping[int, list[int]], digests: Mapping[int, str], *, ends: set[int]) -> Division | None:
    """Divide ranks by their position, which `members` lists; None if ranks of one position differ."""
    seen: dict[int, list[str]] = {}
    unrun: dict[int, list[int]] = {}
    for position, ranks in members.items():
        seen[position] = [digests[rank] for rank in ranks if rank in digests and rank not in ends]
        unrun[position] = [rank for rank in ranks if rank not in digests and rank not in ends]
        if len(set(seen[position])) > 1:
            return None

    def next_of(wanted: Iterable[int]) -> list[int]:  # from the first groups and the last in turn
        return [unrun[position][-(position % 2)] for position in wanted if unrun[position]]

    pairs = sum(len(found) > 1 for found in seen.values())
    single = [position for position, found in seen.items() if len(found) == 1 and unrun[position]]
    if not pairs and single:
        return Division((), tuple(next_of(single[:1])))  # which one refutes a wrong guess
    missing = next_of(position for position, found in seen.items() if not found)
    if missing:
        return Division((), tuple(missing))
    more = next_of(single[: max(CONFIRMED_POSITIONS - pairs, 0)])
    leaves = [Leaf(np.array(members[position]), found[0]) for position, found in seen.items() if found]
    return Division(tuple(leaves), tuple(more))


def _pure_leaf(properties: RankProperties, captured: Bools, digest: str, *, may_ask: bool) -> Division:
    """Return a leaf, which two captured ranks with as little in common as possible must confirm."""
    leaf = Leaf(properties.ranks, digest)
    if not may_ask or captured.all() or captured.sum() >= 2:
        return Division((leaf,), ())
    first = int(np.flatnonzero(captured)[0])
    differs = properties.holds != properties.holds[:, first : first + 1]
    distance = properties.weights @ differs
    distance[captured] = -1.0
    farthest = np.flatnonzero(distance >= distance.max() - 1e-9)[-1]
    return Division((leaf,), (int(properties.ranks[farthest]),))


@dataclass(frozen=True, slots=True, eq=False)
class _Split:
    side: Bools
    question: int | None
    reasons: frozenset[str]


def _best_split(properties: RankProperties, captured: Bools, seen: list[str]) -> _Split | None:
    """Return the property that best separates the digests, and the rank that would tell it from its rivals."""
    outlines: dict[bytes, list[int]] = {}
    for row, outline in enumerate(properties.holds[:, captured]):
        turned = outline if outline[0] else ~outline
        if not turned.all():
            outlines.setdefault(np.packbits(turned).tobytes(), []).append(row)
    if not outlines:
        return None
    weights = properties.weights

    def merit(rows: list[int]) -> tuple[float, float]:
        outline = properties.holds[rows[0], captured].tolist()
        return round(_gain(seen, outline), 9), float(weights[rows].sum())

    rows = max(outlines.values(), key=merit)
    best = max(rows, key=lambda row: (weights[row], -row))
    anchor = int(np.flatnonzero(captured)[0])
    agrees = properties.holds[rows] == properties.holds[rows, anchor][:, np.newaxis]
    total = float(weights[rows].sum())
    is_single = 1 in (properties.holds[best].sum(), (~properties.holds[best]).sum())
    reasons = frozenset[str]() if is_single else properties.names[best]
    if weights[best] >= CONFIDENCE * total:
        return _Split(properties.holds[best], None, reasons)
    one_side = weights[rows] @ agrees
    balance = np.minimum(one_side, total - one_side)
    balance[captured] = 0.0
    requested = int(np.argmax(balance))
    question = int(properties.ranks[requested]) if balance[requested] > 1e-9 else None
    return _Split(properties.holds[best], question, reasons)


def _gain(seen: list[str], outline: list[bool]) -> float:
    """Return the information about the digest, in bits, gained by knowing the side."""
    sides = [[digest for digest, side in zip(seen, outline, strict=True) if side is value] for value in (True, False)]
    return _entropy(seen) - sum(len(side) / len(seen) * _entropy(side) for side in sides)


def _entropy(digests: list[str]) -> float:
    counts = Counter(digests).values()
    return -sum(count / len(digests) * math.log2(count / len(digests)) for count in counts)
