"""Classes: which ranks do the same work, and which have to be captured to be sure of it.

A captured rank is a *primary* if it was started to find out what is done (rank 0, and every rank it talks to point to
point: the stages of a pipeline), or a *sample* if it was started to check that a class is what it is believed to be.

A group that holds two primaries is one across which the work differs: a pipeline, or the world once there is a
pipeline. Groups made like it are *splitting*; through all other groups the work is expected to be the same. Ranks
connected through those are one *component*, and a component is one class until its samples say otherwise
(`splits.py`). With tp 8, pp 16, dp 24: 16 primaries, 16 components of 192 ranks, 6 samples when nothing differs. Of
more components than `Limits.max_confirmations` only so many are sampled, as long as they are what they seem.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sandtable.vgpu.group_book import Family, GroupBook
from sandtable.vgpu.splits import Leaf, Lesson, Properties, learn, untried

__all__ = ["Limits", "Plan", "by_digest", "components", "plan", "stand_ins"]

Ints = npt.NDArray[np.int64]

_ENDS = 2
"""The first stage of a pipeline and the last may hold a rank that does more (one that logs): two odd components say
nothing about the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How many ranks may be captured in search of the classes."""

    max_primaries: int = 64
    primaries_at_once: int = 8
    max_samples: int = 16
    """Of one component."""
    max_kinds: int = 3
    """More different ranks than this in a component (the first, the last, the others) follow no simple rule, as shards
    that cut parameters at different places do: all of them are captured, if they are at most `max_irregular`."""
    max_irregular: int = 64
    max_confirmations: int = 6
    """When so many components were sampled, and all but the ends of a pipeline turned out to be what they were believed
    to be, the others (further stages) are believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to capture next; when there is nothing, `classes` is the answer: representative to members."""

    primaries: tuple[int, ...] = ()
    samples: tuple[int, ...] = ()
    again: tuple[int, ...] = ()
    classes: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    unsure: tuple[tuple[int, int], ...] = ()
    """Components whose samples differ still when no more may be taken: the first rank, and how many there are."""

    @property
    def is_final(self) -> bool:
        return not (self.primaries or self.samples or self.again)


def components(book: GroupBook, primaries: Collection[int]) -> Ints:
    """A label a rank, equal within a component: its smallest rank. Without any group all ranks are alike."""
    if not len(book):
        return np.zeros(book.world_size, dtype=np.int64)
    labels = np.arange(book.world_size, dtype=np.int64)
    joining = [family for family in book.families() if not _is_splitting(family, primaries, book.world_size)]
    changed = True
    while changed:
        before = labels.copy()
        for family in joining:
            found = labels[family.members]
            np.minimum.at(labels, found, found.min(axis=1, keepdims=True))
        while (labels[labels] != labels).any():
            labels = labels[labels]
        changed = bool((labels != before).any())
    return labels


def stand_ins(book: GroupBook, primaries: Collection[int]) -> Ints:
    """For each rank the primary that speaks for it: that of its component, else the one most like it by position."""
    ordered = np.array(sorted(primaries), dtype=np.int64)
    if len(ordered) == 1:
        return np.full(book.world_size, ordered[0], dtype=np.int64)
    labels = components(book, primaries)
    speaker = np.full(book.world_size, -1, dtype=np.int64)
    speaker[labels[ordered[::-1]]] = ordered[::-1]
    chosen = speaker[labels]
    chosen[ordered] = ordered
    homeless = np.flatnonzero(chosen < 0)
    if len(homeless):
        likeness = np.zeros((len(homeless), len(ordered)), dtype=np.int64)
        for family in book.families():
            if family.size < book.world_size and _is_splitting(family, primaries, book.world_size):
                position = _positions(family, book.world_size)
                likeness += position[homeless][:, np.newaxis] == position[ordered][np.newaxis, :]
        chosen[homeless] = ordered[likeness.argmax(axis=1)]
    return chosen


def plan(
    book: GroupBook,
    digests: Mapping[int, str],
    *,
    primaries: Collection[int],
    stale: AbstractSet[int],
    gpus_per_node: int,
    limits: Limits,
) -> Plan:
    """What to capture next. Every captured rank has ended, with the digest given; `stale` ones were told things about
    other ranks that are known better now, and have to run again wherever that may matter.
    """
    bodies = _bodies(components(book, primaries), digests)
    homeless = [body for body in bodies if not body.captured]
    if homeless and len(primaries) < limits.max_primaries:
        room = min(limits.primaries_at_once, limits.max_primaries - len(primaries))
        return Plan(primaries=tuple(int(body.ranks[0]) for body in homeless[:room]))
    if homeless:
        bodies = [body for body in bodies if body.captured] + [_rest(homeless, digests)]
    again = sorted({rank for body in bodies for rank in body.doubtful(digests, stale)})
    if again:
        return Plan(again=tuple(again))
    survey = _Survey.of(book, gpus_per_node, limits)
    lessons = [survey.study(body, digests) for body in bodies]
    asking = _to_confirm(bodies, lessons, digests, limits.max_confirmations)
    samples = sorted({rank for lesson in asking for rank in lesson.ask})
    leaves = [leaf for lesson in lessons for leaf in lesson.leaves]
    if samples:
        return Plan(samples=tuple(samples))
    unsure = [(int(body.ranks[0]), len(body.ranks)) for body in bodies if survey.is_unsure(body, digests)]
    return Plan(classes=_classes(leaves, digests), unsure=tuple(unsure))


def _to_confirm(
    bodies: Sequence["_Body"], lessons: Sequence[Lesson], digests: Mapping[int, str], enough: int
) -> list[Lesson]:
    """The lessons whose questions are asked: all, but of many components that are all alike only some, spread out."""
    num_odd = sum(len({digests[rank] for rank in body.captured}) > 1 for body in bodies)
    if num_odd > _ENDS or len(bodies) <= enough:
        return list(lessons)
    unconfirmed = [k for k, body in enumerate(bodies) if len(body.captured) == 1 and lessons[k].ask]
    room = max(enough - (len(bodies) - len(unconfirmed)), 0)
    chosen = set(np.linspace(0, len(unconfirmed) - 1, room).astype(int).tolist()) if room else set()
    left_out = {k for place, k in enumerate(unconfirmed) if place not in chosen}
    return [lesson for k, lesson in enumerate(lessons) if k not in left_out]


def by_digest(digests: Mapping[int, str]) -> dict[int, tuple[int, ...]]:
    """Classes of captured ranks alone: those of equal digest, under the smallest of them."""
    members: dict[str, list[int]] = {}
    for rank in sorted(digests):
        members.setdefault(digests[rank], []).append(rank)
    return {ranks[0]: tuple(ranks) for ranks in members.values()}


@dataclass(frozen=True, slots=True, eq=False)
class _Body:
    """A component: its ranks in order, and those of them that were captured."""

    ranks: Ints
    captured: tuple[int, ...]

    def doubtful(self, digests: Mapping[int, str], stale: AbstractSet[int]) -> list[int]:
        """Stale ranks whose digest no up-to-date rank of the component confirms."""
        confirmed = {digests[rank] for rank in self.captured if rank not in stale}
        everyone_ran = len(self.captured) == len(self.ranks)
        return [
            rank
            for rank in self.captured
            if rank in stale and digests[rank] not in confirmed and (confirmed or everyone_ran)
        ]


def _is_splitting(family: Family, primaries: Collection[int], world_size: int) -> bool:
    is_primary = np.zeros(world_size, dtype=np.int64)
    is_primary[list(primaries)] = 1
    return bool((is_primary[family.members].sum(axis=1) > 1).any())


def _positions(family: Family, world_size: int) -> Ints:
    """The position of every rank in its group of the family; -1 for those in none."""
    position = np.full(world_size, -1, dtype=np.int64)
    position[family.members] = np.arange(family.size)
    return position


def _bodies(labels: Ints, digests: Mapping[int, str]) -> list[_Body]:
    order = np.argsort(labels, kind="stable")
    bounds = np.flatnonzero(np.diff(labels[order], prepend=-1, append=-1))
    return [
        _body(order[start:end], digests) for start, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    ]


def _body(ranks: Ints, digests: Mapping[int, str]) -> _Body:
    held = set(ranks.tolist()) if len(ranks) < len(digests) else None
    captured = [rank for rank in digests if (rank in held if held is not None else _holds(ranks, rank))]
    return _Body(ranks, tuple(sorted(captured)))


def _holds(ranks: Ints, rank: int) -> bool:
    at = int(np.searchsorted(ranks, rank))
    return at < len(ranks) and int(ranks[at]) == rank


def _rest(homeless: Sequence[_Body], digests: Mapping[int, str]) -> _Body:
    """Ranks that nothing connects to a captured one are judged by their properties alone, from all captured ranks."""
    ranks = np.concatenate([*(body.ranks for body in homeless), np.array(sorted(digests), dtype=np.int64)])
    return _body(np.unique(ranks), digests)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Survey:
    """What can be told about the ranks of a component without running them."""

    world_size: int
    gpus_per_node: int
    columns: list[tuple[Ints, int]]
    kinds: Ints
    limits: Limits

    @classmethod
    def of(cls, book: GroupBook, gpus_per_node: int, limits: Limits) -> "_Survey":
        families = [family for family in book.families() if 1 < family.size < book.world_size]
        return cls(
            world_size=book.world_size,
            gpus_per_node=gpus_per_node,
            columns=[(_positions(family, book.world_size), family.size) for family in families],
            kinds=_group_sizes(book),
            limits=limits,
        )

    def study(self, body: _Body, digests: Mapping[int, str]) -> Lesson:
        """The leaves of a component, and the ranks to sample next."""
        positions = [(column[body.ranks], size) for column, size in self.columns]
        found = {digests[rank] for rank in body.captured}
        may_ask = len(body.captured) < self.limits.max_samples
        facts = {"world_size": self.world_size, "gpus_per_node": self.gpus_per_node}
        if len(found) > self.limits.max_kinds and len(body.captured) < len(body.ranks) <= self.limits.max_irregular:
            return Lesson((), tuple(sorted(set(body.ranks.tolist()).difference(body.captured))))
        if len(found) > 1:
            return learn(Properties.of(body.ranks, positions=positions, **facts), digests, may_ask=may_ask)
        leaf = Leaf(body.ranks, next(iter(found)))
        ask = self._other_kinds(body)
        if not ask:
            # Two ranks, the first and the last, usually show both sides of every plain property between them.
            untold = untried(Properties.plain(body.ranks, positions=positions, **facts), set(body.captured))
            ask = [] if untold is None else [untold]
        return Lesson((leaf,), tuple(ask) if may_ask else ())

    def is_unsure(self, body: _Body, digests: Mapping[int, str]) -> bool:
        """Whether its captured ranks differ and some were not captured because there may be no more samples."""
        exhausted = self.limits.max_samples <= len(body.captured) < len(body.ranks)
        return exhausted and len({digests[rank] for rank in body.captured}) > 1

    def _other_kinds(self, body: _Body) -> list[int]:
        """A rank of each kind (by sizes of its groups) that no captured one is of."""
        kinds = self.kinds[body.ranks]
        unseen = sorted(set(kinds.tolist()) - {int(self.kinds[rank]) for rank in body.captured})
        room = max(0, self.limits.max_samples - len(body.captured))
        return [int(body.ranks[kinds == kind][-1]) for kind in unseen[:room]]


def _group_sizes(book: GroupBook) -> Ints:
    """A number a rank, different if the sizes of the groups in its own list are: such ranks hardly do the same work."""
    kinds = np.zeros(book.world_size, dtype=np.int64)
    for entry, members in enumerate(book.members):
        salt = hash((len(members), 0x5A4D)) & 0x7FFFFFFF
        kinds[members] += (book.presumed_places(entry) + 1) * salt
    return kinds


def _classes(leaves: Iterable[Leaf], digests: Mapping[int, str]) -> dict[int, tuple[int, ...]]:
    """Leaves of equal digest are one class; a captured rank is always in the class of its own digest."""
    found = {members[0]: set(members) for members in by_digest(digests).values()}
    representative = {digests[rank]: rank for rank in found}
    for leaf in leaves:
        found[representative[leaf.digest]].update(set(leaf.ranks.tolist()).difference(digests))
    return {rank: tuple(sorted(members)) for rank, members in found.items()}
