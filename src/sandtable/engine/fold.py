"""Folding: ranks whose time must be equal become one actor.

Think of identical dancers: while two have the same steps, the same kind of partners and the same floor, watching one
is watching the other. Ranks get a colour by what they do and on which device; then, repeatedly, by the
colours of the ranks they meet and the links between, until no colour splits any more (colour refinement). Ranks of one
colour are one *actor*. On a uniform cluster the number of actors does not grow with the number of replicas; a slow node
or a thin link splits only the ranks it affects.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sandtable.cluster.topology import Topology
from sandtable.engine.program import Edge
from sandtable.trace.trace import Trace

__all__ = ["Fold", "Membership", "fold"]

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]


class Membership:
    """Who is in which group, by rank: columns over all (group, member) pairs and a table of each rank's own groups."""

    def __init__(self, trace: Trace) -> None:
        groups = trace.groups
        self.members, self.offsets = groups.members, groups.offsets
        self.sizes = np.diff(self.offsets)
        self.group_of_entry = np.repeat(np.arange(len(groups)), self.sizes)
        order = np.argsort(self.members, kind="stable")
        ordered = self.members[order]
        starts = np.searchsorted(ordered, np.arange(trace.world_size))
        self.own_of_entry = np.empty(len(self.members), dtype=np.int64)
        self.own_of_entry[order] = np.arange(len(order)) - starts[ordered]
        width = int(self.own_of_entry.max()) + 1 if len(order) else 0
        self.own_group = np.full((trace.world_size, width), -1, dtype=np.int64)
        self.own_group[self.members, self.own_of_entry] = self.group_of_entry
        self._position = np.zeros((trace.world_size, width), dtype=np.int64)
        self._position[self.members, self.own_of_entry] = (
            np.arange(len(self.members)) - self.offsets[self.group_of_entry]
        )

    def peers(self, ranks: I64, edge: Edge) -> tuple[I64, I64]:
        """Return the other end of a point-to-point `edge` for each of `ranks`, and its own number of that group."""
        group = self.own_group[ranks, edge.group]
        place = (self._position[ranks, edge.group] + edge.peer) % self.sizes[group]
        entry = self.offsets[group] + place
        return self.members[entry], self.own_of_entry[entry]

    def ranks_of(self, groups: I64) -> I64:
        """Return the members of groups of one size, one row per group."""
        positions = np.arange(int(self.sizes[groups[0]]))
        return np.asarray(self.members[self.offsets[groups][:, None] + positions[None, :]])


@dataclass(frozen=True, kw_only=True)
class Fold:
    """Which actor each rank is, and which groups are equal by symmetry."""

    membership: Membership
    actor_of_rank: I64
    representatives: I64
    """The first rank of each actor."""
    group_class: I64
    """The class of each group that collectives run on; -1 for others."""

    @property
    def num_actors(self) -> int:
        return len(self.representatives)

    @cached_property
    def _ranks_by_actor(self) -> tuple[I64, I64]:
        order = np.argsort(self.actor_of_rank, kind="stable")
        return order, np.searchsorted(self.actor_of_rank[order], np.arange(self.num_actors + 1))

    def ranks(self, actor: int) -> I64:
        """Return the ranks of one actor, in order."""
        order, bounds = self._ranks_by_actor
        return order[bounds[actor] : bounds[actor + 1]]

    @cached_property
    def _groups_by_class(self) -> tuple[I64, I64]:
        order = np.argsort(self.group_class, kind="stable")
        return order, np.searchsorted(self.group_class[order], np.arange(int(self.group_class.max(initial=-1)) + 2))

    def groups(self, group_class: int) -> I64:
        """Return the groups of one class, in order."""
        order, bounds = self._groups_by_class
        return order[bounds[group_class] : bounds[group_class + 1]]


def fold(trace: Trace, topology: Topology, *, edges: Mapping[int, Sequence[Edge]], first_colour: U64) -> Fold:
    """Refine the colours of ranks until nothing splits, and return one actor per colour.

    `edges` are those of each class of `trace.classes`, by number; `first_colour` sets ranks apart from the start: by
    class, device and speed.
    """
    membership = Membership(trace)
    ranks_of_class = {number: np.asarray(trace.classes[number].ranks) for number in edges}
    used = np.zeros(len(trace.groups), dtype=bool)
    for number, class_edges in edges.items():
        for edge in class_edges:
            if not edge.is_p2p:
                used[membership.own_group[ranks_of_class[number], edge.group]] = True
    shape = _shapes(membership, used, topology)
    peers = _peer_tables(membership, ranks_of_class, edges, topology)
    colour = first_colour
    count = len(np.unique(colour))
    while True:
        group_hash = _group_hashes(membership, shape, colour)
        fresh = _mix(colour)
        for number, class_edges in edges.items():
            ranks = ranks_of_class[number]
            for edge in class_edges:
                if not edge.is_p2p:
                    met = group_hash[membership.own_group[ranks, edge.group]]
                    fresh[ranks] = _mix(fresh[ranks] + _mix(met + np.uint64(edge.group)))
        for ranks, others, key in peers:
            fresh[ranks] = _mix(fresh[ranks] + _mix(key ^ colour[others]))
        colour = fresh
        if len(np.unique(colour)) == count:
            break
        count = len(np.unique(colour))
    group_hash = _group_hashes(membership, shape, colour)
    actor_of_rank, representatives = _number(colour)
    group_class = np.full(len(trace.groups), -1, dtype=np.int64)
    group_class[used] = _number(group_hash[used])[0]
    return Fold(
        membership=membership,
        actor_of_rank=actor_of_rank,
        representatives=representatives,
        group_class=group_class,
    )


def _shapes(membership: Membership, used: npt.NDArray[np.bool_], topology: Topology) -> U64:
    """Return one number per group: how its ring lies on the links, by how often it uses links of each kind."""
    shape = np.zeros(len(membership.sizes), dtype=np.uint64)
    entries = np.flatnonzero(used[membership.group_of_entry])
    if not len(entries):
        return shape
    group, rank = membership.group_of_entry[entries], membership.members[entries]
    order = np.lexsort((topology.slot_of[rank], topology.node_of[rank], group))
    group, rank = group[order], rank[order]
    first = np.append(True, group[1:] != group[:-1])
    following = np.append(rank[1:], rank[:1])
    last = np.append(first[1:], True)
    following[last] = rank[first]
    routes = topology.routes(rank, following)
    width = routes.shape[1]
    flat = routes.reshape(-1).astype(np.int64)
    owner = np.repeat(group, width)[flat >= 0]
    flat = flat[flat >= 0]
    pairs, counts = np.unique(owner * topology.num_links + flat, return_counts=True)
    kind = _link_kinds(topology)[pairs % topology.num_links]
    np.add.at(shape, pairs // topology.num_links, _mix(kind ^ counts.astype(np.uint64)))
    return _mix(shape + membership.sizes.astype(np.uint64))


def _link_kinds(topology: Topology) -> U64:
    """Return one number per link, equal for links of equal speed and delay."""
    speed = np.asarray(topology.bandwidth_bytes_per_s, dtype=np.float64).view(np.uint64)
    return _mix(speed + _mix(np.asarray(topology.latency_ns).astype(np.uint64)))


def _peer_tables(
    membership: Membership,
    ranks_of_class: Mapping[int, I64],
    edges: Mapping[int, Sequence[Edge]],
    topology: Topology,
) -> list[tuple[I64, I64, U64]]:
    """Return for each point-to-point edge of a class its ranks, their peers, and the links between as one number."""
    kinds = np.append(_link_kinds(topology), np.uint64(0))
    tables = []
    for class_number, class_edges in edges.items():
        for number, edge in enumerate(class_edges):
            if edge.is_p2p:
                ranks = ranks_of_class[class_number]
                peers, own = membership.peers(ranks, edge)
                routes = topology.routes(ranks, peers) if edge.sends else topology.routes(peers, ranks)
                between = _mix(kinds[routes]).sum(axis=1, dtype=np.uint64)
                key = _mix(between + np.uint64(number)) ^ _mix(own.astype(np.uint64))
                tables.append((ranks, peers, key))
    return tables


def _group_hashes(membership: Membership, shape: U64, colour: U64) -> U64:
    """Return one number per group from its shape and the colours of its members, in any order."""
    entries = _mix(colour[membership.members] ^ _mix(membership.own_of_entry.astype(np.uint64)))
    totals = np.add.reduceat(entries, membership.offsets[:-1]) if len(entries) else np.zeros(0, dtype=np.uint64)
    return _mix(shape + totals)


def _number(labels: U64) -> tuple[I64, I64]:
    """Return labels as numbers in order of first appearance, and where each first appears."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank_of = np.empty(len(order), dtype=np.int64)
    rank_of[order] = np.arange(len(order))
    return rank_of[inverse.reshape(-1)], first[order]


def _mix(values: U64) -> U64:
    """Scramble 64 bits (splitmix64)."""
    with np.errstate(over="ignore"):
        x = values + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(x ^ (x >> np.uint64(31)))
