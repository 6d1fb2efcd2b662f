"""Classes: which ranks do the same work, and which must be captured to be sure of it.

A captured rank is a *primary* if it runs to find out what work there is (rank 0, and every rank it talks to point to
point: the stages of a pipeline), or a *sample* if it runs to verify a class.

The work differs across a group that holds two primaries: a pipeline, or the world once there is a pipeline. Groups made
like it are *splitting*; through all other groups the work is expected to be the same. Ranks connected through those are
one *component*, and a component is one class until its samples differ (`splits.py`). With tp 8, pp 16, dp 24: 16
primaries, 16 components of 192 ranks, 6 samples when nothing differs. Of more components than
`Limits.max_confirmations`, only that many are sampled unless they differ.

Ranks that hold shards of flat buffers differ in where these are cut. What follows from that is left out before ranks
are compared (`sharded_ranks.py`). A component whose ranks hold chunks of several lengths (`chunked_dims.py`) is divided
into parts that hold the same, and each is sampled as a component is.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from sandtable.vgpu.chunked_dims import ChunkedDim, chunk_labels
from sandtable.vgpu.group_registry import GroupFamily, GroupRegistry
from sandtable.vgpu.sharded_ranks import MAX_SAMPLES, ShardedRanks, ShardReader, study
from sandtable.vgpu.splits import Division, Leaf, RankProperties, divide_by_position, learn, untried

__all__ = ["CapturePlan", "Limits", "by_digest", "component_labels", "plan", "stand_ins"]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How many ranks may be captured in search of the classes."""

    max_primaries: int = 64
    primaries_at_once: int = 8
    max_samples: int = 16
    """Of one component."""
    max_kinds: int = 3
    """More different ranks than this in a component (the first, the last, the others) follow no simple rule: all of
    them are captured, if they are at most `max_irregular`."""
    max_irregular: int = 64
    max_confirmations: int = 6
    """Once this many components were sampled, and none but the ends of a pipeline differed within itself, the others
    (further stages) need no sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturePlan:
    """What to capture next. If there is nothing, `classes` maps each representative to the members of its class."""

    primaries: tuple[int, ...] = ()
    samples: tuple[int, ...] = ()
    again: tuple[int, ...] = ()
    classes: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    unsure: tuple[tuple[int, int], ...] = ()
    """Components whose samples still differ when no more may be taken: the first rank, and the number of ranks."""
    sharded: tuple[ShardedRanks, ...] = ()
    """Ranks that differ only in where flat buffers are cut."""

    @property
    def is_final(self) -> bool:
        return not (self.primaries or self.samples or self.again)


def component_labels(registry: GroupRegistry, primaries: Collection[int]) -> Ints:
    """Return one label per rank, the smallest rank of its component. Without groups all ranks are one component."""
    if not len(registry):
        return np.zeros(registry.world_size, dtype=np.int64)
    labels = np.arange(registry.world_size, dtype=np.int64)
    joining = [family for family in registry.families() if not _is_splitting(family, primaries, registry.world_size)]
    changed = True
    while changed:
        before = labels.copy()
        for family in joining:
            member_labels = labels[family.members]
            np.minimum.at(labels, member_labels, member_labels.min(axis=1, keepdims=True))
        while (labels[labels] != labels).any():
            labels = labels[labels]
        changed = bool((labels != before).any())
    return labels


def stand_ins(registry: GroupRegistry, primaries: Collection[int]) -> Ints:
    """Return the primary that speaks for each rank: that of its component, else the one most like it by position."""
    ordered = np.array(sorted(primaries), dtype=np.int64)
    if len(ordered) == 1:
        return np.full(registry.world_size, ordered[0], dtype=np.int64)
    labels = component_labels(registry, primaries)
    speaker = np.full(registry.world_size, -1, dtype=np.int64)
    speaker[labels[ordered[::-1]]] = ordered[::-1]
    chosen = speaker[labels]
    chosen[ordered] = ordered
    uncaptured = np.flatnonzero(chosen < 0)
    if len(uncaptured):
        likeness = np.zeros((len(uncaptured), len(ordered)), dtype=np.int64)
        for family in registry.families():
            if family.size < registry.world_size and _is_splitting(family, primaries, registry.world_size):
                position = family.positions(registry.world_size)
                likeness += position[uncaptured][:, np.newaxis] == position[ordered][np.newaxis, :]
        chosen[uncaptured] = ordered[likeness.argmax(axis=1)]
    return chosen


def plan(
    registry: GroupRegistry,
    digests: Mapping[int, str],
    *,
    primaries: Collection[int],
    stale: AbstractSet[int],
    gpus_per_node: int,
    limits: Limits,
    shards: ShardReader | None = None,
    chunked_dims: Mapping[int, Sequence[ChunkedDim]] | None = None,
) -> CapturePlan:
    """Choose what to capture next.

    Every captured rank has ended with the digest given. Those in `stale` got answers about other ranks that would be
    different now; they run again wherever that may matter. `shards` reads the records of ranks that have flat buffers;
    `chunked_dims` are those that each captured rank reported.
    """
    components = _components_of(component_labels(registry, primaries), digests)
    uncaptured = [component for component in components if not component.captured]
    if uncaptured and len(primaries) < limits.max_primaries:
        room = min(limits.primaries_at_once, limits.max_primaries - len(primaries))
        return CapturePlan(primaries=tuple(int(component.ranks[0]) for component in uncaptured[:room]))
    if uncaptured:
        components = [component for component in components if component.captured] + [_rest(uncaptured, digests)]
    if chunked_dims:
        divided = (
            _divide_by_chunks(component, digests, registry, chunked_dims, limits.max_irregular)
            for component in components
        )
        components = [part for parts in divided for part in parts]
    samples = [int(component.ranks[-1]) for component in components if not component.captured]
    if samples:
        return CapturePlan(samples=tuple(samples))
    sharded = _study(components, digests, registry, shards) if shards else []
    samples = sorted({rank for _, ranks in sharded for rank in ranks.next_ranks})
    if samples:
        return CapturePlan(samples=tuple(samples))
    digests = {**digests, **{rank: digest for _, ranks in sharded for rank, digest in ranks.digests.items()}}
    again = sorted({rank for component in components for rank in component.doubtful(digests, stale)})
    if again:
        return CapturePlan(again=tuple(again))
    if sharded:
        limits = replace(limits, max_samples=limits.max_samples + MAX_SAMPLES)
    rank_facts = _RankFacts.of(registry, gpus_per_node, limits)
    divisions = rank_facts.divide_all(components, digests)
    adopting = {k for k, ranks in sharded if ranks.adopted_types is not None}
    doubtful = _doubtful(components, digests, _stages(components, registry, primaries))
    asking = _to_confirm(components, divisions, doubtful, adopting, limits.max_confirmations)
    samples = sorted({rank for division in _first_and_last_question(asking) for rank in division.next_ranks})
    unsure = [k for k, component in enumerate(components) if rank_facts.is_unsure(component, digests)]
    certain = [(k, ranks) for k, ranks in sharded if k not in unsure]
    samples = samples or _uncaptured_costliest(divisions, certain, digests)
    if samples:
        return CapturePlan(samples=tuple(samples))
    leaves = [leaf for division in divisions for leaf in division.leaves]
    return CapturePlan(
        classes=_represented(_classes(leaves, digests), [ranks for _, ranks in sharded]),
        unsure=tuple((int(components[k].ranks[0]), len(components[k].ranks)) for k in unsure),
        sharded=tuple(ranks for _, ranks in certain if ranks.types and ranks.num_kinds <= limits.max_kinds),
    )


def _divide_by_chunks(
    component: "_Component",
    digests: Mapping[int, str],
    registry: GroupRegistry,
    chunked_dims: Mapping[int, Sequence[ChunkedDim]],
    max_parts: int,
) -> list["_Component"]:
    """Divide a component into ranks whose chunks of distributed tensors have equal lengths, if they are few parts."""
    first = min(component.captured)
    dims = chunked_dims.get(first, ())
    if not dims:
        return [component]
    labels = chunk_labels(component.ranks, dims, registry.own(first), registry)
    if labels.max() >= max_parts:
        return [component]
    return [_component_of(component.ranks[labels == label], digests) for label in range(labels.max() + 1)]


def _study(
    components: Sequence["_Component"], digests: Mapping[int, str], registry: GroupRegistry, shards: ShardReader
) -> list[tuple[int, ShardedRanks]]:
    """Return the ranks that differ in where flat buffers are cut, with the number of their component."""
    families = sorted(registry.families(), key=lambda family: family.size)
    firsts = [family.positions(registry.world_size) == 0 for family in families]
    sharded: dict[int, ShardedRanks] = {}
    for number, component in enumerate(components):
        work = {rank: shards.work(rank, digests[rank]) for rank in component.captured}
        ranks = ShardedRanks.of(component.ranks, work, registry, firsts)
        if ranks is not None:
            sharded[number] = ranks
    return study(sharded)


def _uncaptured_costliest(
    divisions: Sequence[Division], sharded: Iterable[tuple[int, ShardedRanks]], digests: Mapping[int, str]
) -> list[int]:
    """Return the rank of each sharded leaf that costs most, where it was not captured."""
    costliest: set[int] = set()
    for number, ranks in sharded:
        for leaf in divisions[number].leaves:
            held = np.intersect1d(leaf.ranks, ranks.pieces.ranks)
            costliest |= {ranks.costliest(held)} if len(held) else set()
    return sorted(costliest.difference(digests))


def _represented(classes: Mapping[int, tuple[int, ...]], sharded: Iterable[ShardedRanks]) -> dict[int, tuple[int, ...]]:
    """Have the costliest captured rank represent each class of sharded ranks: the others wait for it."""
    cost = {rank: ranks.costs(np.array([rank]))[0] for ranks in sharded for rank in ranks.work}
    represented: dict[int, tuple[int, ...]] = {}
    for first, members in classes.items():
        captured = sorted(cost.keys() & set(members)) if first in cost else [first]
        represented[max(captured, key=lambda rank: cost.get(rank, 0.0))] = members
    return represented


def _stages(components: Sequence["_Component"], registry: GroupRegistry, primaries: Collection[int]) -> list[Ints]:
    """Return, per kind of group across which the work differs, the position of every rank.

    Where there is none, components are told apart by how large tensors are cut, and stand in the order of their ranks.
    """
    families = [family for family in registry.families() if _is_splitting(family, primaries, registry.world_size)]
    if families:
        return [family.positions(registry.world_size) for family in families]
    number = np.zeros(registry.world_size, dtype=np.int64)
    for k, component in enumerate(components):
        number[component.ranks] = k
    return [number]


def _doubtful(
    components: Sequence["_Component"], digests: Mapping[int, str], stages: Iterable[Ints]
) -> AbstractSet[int]:
    """Return the components that may hold different ranks, because some did that were expected to be alike.

    At both ends of a pipeline ranks may do more (load tokens, log). If all that hold different ranks stand there, only
    those beside them are doubtful (their other ring positions), else all are.
    """
    odd = [component for component in components if len({digests[rank] for rank in component.captured}) > 1]
    doubtful: AbstractSet[int] = set(range(len(components)))
    for position in stages:
        places = {int(place) for component in odd for place in position[component.ranks]}
        if places <= {0, int(position.max())}:
            beside = {k for k, component in enumerate(components) if places & set(position[component.ranks].tolist())}
            doubtful = min(doubtful, beside, key=len)
    return doubtful if odd else set()


def _to_confirm(
    components: Sequence["_Component"],
    divisions: Sequence[Division],
    doubtful: AbstractSet[int],
    adopting: AbstractSet[int],
    enough: int,
) -> list[Division]:
    """Return the divisions to sample for: of many components that are alike only some, spread out.

    A component in `adopting` is as unconfirmed as one with a single captured rank.
    """
    alike = [k for k in range(len(components)) if k not in doubtful]
    if len(components) <= enough:
        return list(divisions)
    unconfirmed = [k for k in alike if (len(components[k].captured) == 1 or k in adopting) and divisions[k].next_ranks]
    room = max(enough - (len(alike) - len(unconfirmed)), 0)
    chosen = set(np.linspace(0, len(unconfirmed) - 1, room).astype(int).tolist()) if room else set()
    left_out = {k for place, k in enumerate(unconfirmed) if place not in chosen}
    return [division for k, division in enumerate(divisions) if k not in left_out]


def _first_and_last_question(divisions: Sequence[Division]) -> list[Division]:
    """Leave out questions but the first and the last: what they find out is the first suspect in the others."""
    questions = [k for k, division in enumerate(divisions) if not division.leaves]
    return [division for k, division in enumerate(divisions) if k not in questions[1:-1]]


def by_digest(digests: Mapping[int, str]) -> dict[int, tuple[int, ...]]:
    """Return the classes of captured ranks of equal digest, keyed by the smallest rank."""
    members: dict[str, list[int]] = {}
    for rank in sorted(digests):
        members.setdefault(digests[rank], []).append(rank)
    return {ranks[0]: tuple(ranks) for ranks in members.values()}


@dataclass(frozen=True, slots=True, eq=False)
class _Component:
    """A component: its ranks in order, and those of them that were captured."""

    ranks: Ints
    captured: tuple[int, ...]

    def doubtful(self, digests: Mapping[int, str], stale: AbstractSet[int]) -> list[int]:
        """Return the stale ranks whose digest no up-to-date rank of the component confirms."""
        confirmed = {digests[rank] for rank in self.captured if rank not in stale}
        everyone_ran = len(self.captured) == len(self.ranks)
        return [
            rank
            for rank in self.captured
            if rank in stale and digests[rank] not in confirmed and (confirmed or everyone_ran)
        ]


def _is_splitting(family: GroupFamily, primaries: Collection[int], world_size: int) -> bool:
    is_primary = np.zeros(world_size, dtype=np.int64)
    is_primary[list(primaries)] = 1
    return bool((is_primary[family.members].sum(axis=1) > 1).any())


def _components_of(labels: Ints, digests: Mapping[int, str]) -> list[_Component]:
    order = np.argsort(labels, kind="stable")
    bounds = np.flatnonzero(np.diff(labels[order], prepend=-1, append=-1))
    return [
        _component_of(order[start:end], digests)
        for start, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    ]


def _component_of(ranks: Ints, digests: Mapping[int, str]) -> _Component:
    held = set(ranks.tolist()) if len(ranks) < len(digests) else None
    captured = [rank for rank in digests if (rank in held if held is not None else _holds(ranks, rank))]
    return _Component(ranks, tuple(sorted(captured)))


def _holds(ranks: Ints, rank: int) -> bool:
    at = int(np.searchsorted(ranks, rank))
    return at < len(ranks) and int(ranks[at]) == rank


def _rest(uncaptured: Sequence[_Component], digests: Mapping[int, str]) -> _Component:
    """Join ranks that nothing connects to a captured one: their properties decide, compared with all captured ranks."""
    ranks = np.concatenate([*(component.ranks for component in uncaptured), np.array(sorted(digests), dtype=np.int64)])
    return _component_of(np.unique(ranks), digests)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _RankFacts:
    """What is known about the ranks of a component without running them."""

    world_size: int
    gpus_per_node: int
    columns: list[tuple[Ints, int]]
    kinds: Ints
    limits: Limits

    @classmethod
    def of(cls, registry: GroupRegistry, gpus_per_node: int, limits: Limits) -> "_RankFacts":
        families = [family for family in registry.families() if 1 < family.size < registry.world_size]
        return cls(
            world_size=registry.world_size,
            gpus_per_node=gpus_per_node,
            columns=[(family.positions(registry.world_size), family.size) for family in families],
            kinds=_group_sizes(registry),
            limits=limits,
        )

    def divide_all(self, components: Sequence[_Component], digests: Mapping[int, str]) -> list[Division]:
        """Return the division of each component; what decided in one is the first suspect in the others."""
        divisions = [self.divide(component, digests) for component in components]
        known = frozenset[str]().union(*(division.reasons for division in divisions if not division.next_ranks))
        return [
            self.divide(component, digests, suspects=known) if known and division.next_ranks else division
            for component, division in zip(components, divisions, strict=True)
        ]

    def divide(
        self, component: _Component, digests: Mapping[int, str], *, suspects: AbstractSet[str] = frozenset()
    ) -> Division:
        """Return the leaves of a component, and the ranks to sample next."""
        positions = [(column[component.ranks], size) for column, size in self.columns]
        kinds = {digests[rank] for rank in component.captured}
        may_ask = len(component.captured) < self.limits.max_samples
        facts = {"world_size": self.world_size, "gpus_per_node": self.gpus_per_node}
        by_position = self._by_position(component, digests)
        if by_position is not None:
            return by_position
        if (
            len(kinds) > self.limits.max_kinds
            and len(component.captured) < len(component.ranks) <= self.limits.max_irregular
        ):
            return Division((), tuple(sorted(set(component.ranks.tolist()).difference(component.captured))))
        if len(kinds) > 1:
            properties = RankProperties.of(component.ranks, positions=positions, **facts).suspecting(suspects)
            return learn(properties, digests, may_ask=may_ask)
        leaf = Leaf(component.ranks, next(iter(kinds)))
        ask = self._other_kinds(component)
        if not ask:
            # Two ranks, the first and the last, usually show both sides of every plain property between them.
            untried_rank = untried(
                RankProperties.plain(component.ranks, positions=positions, **facts), set(component.captured)
            )
            ask = [] if untried_rank is None else [untried_rank]
        return Division((leaf,), tuple(ask) if may_ask else ())

    def is_unsure(self, component: _Component, digests: Mapping[int, str]) -> bool:
        """Return whether its captured ranks differ while the limit forbids further samples."""
        exhausted = self.limits.max_samples <= len(component.captured) < len(component.ranks)
        kinds = {digests[rank] for rank in component.captured}
        return exhausted and len(kinds) > 1 and self._by_position(component, digests) is None

    def _by_position(self, component: _Component, digests: Mapping[int, str]) -> Division | None:
        """Return the division by the position in a group, if the ranks are of too many kinds for a simpler rule."""
        if len({digests[rank] for rank in component.captured}) <= self.limits.max_kinds:
            return None
        positions = [(column[component.ranks], size) for column, size in self.columns]
        captured = {rank: digests[rank] for rank in component.captured}
        max_size = min(self.limits.max_irregular, len(component.ranks) // 2)
        return divide_by_position(component.ranks, captured, positions=positions, max_size=max_size)

    def _other_kinds(self, component: _Component) -> list[int]:
        """Return one rank of each kind (by the sizes of its groups) that has no captured rank."""
        kinds = self.kinds[component.ranks]
        unseen = sorted(set(kinds.tolist()) - {int(self.kinds[rank]) for rank in component.captured})
        room = max(0, self.limits.max_samples - len(component.captured))
        return [int(component.ranks[kinds == kind][-1]) for kind in unseen[:room]]


def _group_sizes(registry: GroupRegistry) -> Ints:
    """Return a number per rank that depends on the sizes of its groups: ranks that differ here hardly work alike."""
    kinds = np.zeros(registry.world_size, dtype=np.int64)
    for family in registry.families():
        salt = hash((family.size, 0x5A4D)) & 0x7FFFFFFF
        places = np.stack([registry.presumed_places(entry) for entry in family.entries])
        np.add.at(kinds, family.members, (places + 1) * salt)
    return kinds


def _classes(leaves: Iterable[Leaf], digests: Mapping[int, str]) -> dict[int, tuple[int, ...]]:
    """Merge leaves of equal digest into classes; a captured rank is always in the class of its own digest."""
    classes = {members[0]: set(members) for members in by_digest(digests).values()}
    representative = {digests[rank]: rank for rank in classes}
    for leaf in leaves:
        classes[representative[leaf.digest]].update(set(leaf.ranks.tolist()).difference(digests))
    return {rank: tuple(sorted(members)) for rank, members in classes.items()}
