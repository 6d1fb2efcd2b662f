"""Wiring: which calls of which actors belong together, and what each one puts on the links.

Every edge of an actor (a group, or a peer in one direction) leads to a *channel*, where the n-th call of each member
meets the n-th of the others. Groups that are equal by symmetry are one channel, whose transfers carry the load of all
of them. Links that every transfer loads alike are one link class: the clock shares classes, not links.
"""

import numpy as np
import numpy.typing as npt

from sandtable.engine.clock import Wiring
from sandtable.engine.fold import Fold
from sandtable.engine.network.planner import Planner
from sandtable.engine.network.transfer import Transfer
from sandtable.engine.program import CallPattern, Edge, Program

__all__ = ["wire"]

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]


def wire(fold: Fold, programs: list[Program], planner: Planner) -> Wiring:
    """Wire the actors; `programs` has one program per actor."""
    return _Wirer(fold, planner).wire(programs)


class _Wirer:
    def __init__(self, fold: Fold, planner: Planner) -> None:
        self.fold, self.planner = fold, planner
        self.slots: list[int] = []
        self.transfers: list[Transfer] = []
        self._channels: dict[tuple[object, ...], int] = {}
        self._transfer_ids: dict[tuple[object, ...], int] = {}

    def wire(self, programs: list[Program]) -> Wiring:
        channels, transfers = [], []
        for actor, program in enumerate(programs):
            own_channels = [self._channel(actor, edge) for edge in program.edges]
            channels.append(np.array(own_channels, dtype=np.int32))
            ids = [
                self._transfer(actor, program.edges[pattern.edge], pattern, channel=own_channels[pattern.edge])
                for pattern in program.patterns
            ]
            transfers.append(np.array(ids, dtype=np.int32))
        num_classes, first, links, loads = _link_classes(self.transfers, self.planner.topology.num_links)
        return Wiring(
            slots=np.array(self.slots, dtype=np.int32),
            transfers=tuple(self.transfers),
            channel_of_edge=tuple(channels),
            transfer_of_pattern=tuple(transfers),
            num_link_classes=num_classes,
            first_link=first,
            links=links,
            loads=loads,
        )

    def _channel(self, actor: int, edge: Edge) -> int:
        rank = self.fold.representatives[actor : actor + 1]
        if edge.is_p2p:
            key = self._p2p_key(actor, rank, edge)
            return self._channels.setdefault(key, self._new_channel(2) if key not in self._channels else -1)
        group = int(self.fold.membership.own_group[rank[0], edge.group])
        group_class = int(self.fold.group_class[group])
        if ("group", group_class) not in self._channels:
            self._channels["group", group_class] = self._new_channel(self._num_members(group_class))
        return self._channels["group", group_class]

    def _new_channel(self, slots: int) -> int:
        self.slots.append(slots)
        return len(self.slots) - 1

    def _num_members(self, group_class: int) -> int:
        """Count the actors in a group; an actor in it under two of its own numbers counts twice."""
        fold, member = self.fold, self.fold.membership
        group = int(fold.groups(group_class)[0])
        entries = slice(int(member.offsets[group]), int(member.offsets[group + 1]))
        pairs = np.stack([fold.actor_of_rank[member.members[entries]], member.own_of_entry[entries]])
        return int(np.unique(pairs, axis=1).shape[1])

    def _p2p_key(self, actor: int, rank: I64, edge: Edge) -> tuple[object, ...]:
        """Return the key of a channel, the same for the sender's edge and the receiver's."""
        peers, own = self.fold.membership.peers(rank, edge)
        other = (int(self.fold.actor_of_rank[peers[0]]), int(own[0]))
        size = int(self.fold.membership.sizes[self.fold.membership.own_group[rank[0], edge.group]])
        if edge.sends:
            return ("p2p", actor, edge.group, *other, edge.peer)
        return ("p2p", *other, actor, edge.group, (size - edge.peer) % size)

    def _transfer(self, actor: int, edge: Edge, pattern: CallPattern, *, channel: int) -> int:
        size = max(pattern.bytes_in, pattern.bytes_out)
        if edge.is_p2p:
            # The two ends of a gloo message may see it differently: the clock follows the end that comes last.
            behind = pattern.behind_bytes if self.planner.backend == "gloo" else 0
            key: tuple[object, ...] = (channel, size, behind)
        else:
            key = (channel, pattern.op, pattern.bytes_in, pattern.bytes_out, pattern.root)
        if key not in self._transfer_ids:
            self._transfer_ids[key] = len(self.transfers)
            self.transfers.append(self._plan(actor, edge, pattern))
        return self._transfer_ids[key]

    def _plan(self, actor: int, edge: Edge, pattern: CallPattern) -> Transfer:
        ranks = self.fold.ranks(actor)
        if edge.is_p2p:
            peers, _ = self.fold.membership.peers(ranks, edge)
            src, dst = (ranks, peers) if edge.sends else (peers, ranks)
            size = max(pattern.bytes_in, pattern.bytes_out)
            return self.planner.p2p(size, src=src, dst=dst, behind_bytes=pattern.behind_bytes)
        group = int(self.fold.membership.own_group[ranks[0], edge.group])
        groups = self.fold.groups(int(self.fold.group_class[group]))
        return self.planner.collective(
            pattern.op,
            bytes_in=pattern.bytes_in,
            bytes_out=pattern.bytes_out,
            groups=self.fold.membership.ranks_of(groups),
            root=pattern.root,
        )


def _link_classes(transfers: list[Transfer], num_links: int) -> tuple[int, I32, I32, F64]:
    """Merge links with the same load from every transfer: return (number, first of each transfer, links, loads)."""
    label = np.zeros(num_links, dtype=np.uint64)
    loads_of = [transfer.loads for transfer in transfers]
    with np.errstate(over="ignore"):
        for number, (transfer, link_loads) in enumerate(zip(transfers, loads_of, strict=True)):
            load = np.round(link_loads * 1e9).astype(np.uint64)
            label[transfer.links] += (load + np.uint64(1)) * np.uint64(2 * number + 1) * np.uint64(0x9E3779B97F4A7C15)
            label[transfer.links] ^= label[transfer.links] >> np.uint64(29)
    _, class_of = np.unique(label, return_inverse=True)
    class_of = class_of.reshape(-1)
    first, links, loads = [0], [], []
    for transfer, link_loads in zip(transfers, loads_of, strict=True):
        classes, first_rows = np.unique(class_of[transfer.links], return_index=True)
        links.append(classes.astype(np.int32))
        loads.append(link_loads[first_rows])
        first.append(first[-1] + len(classes))
    joined_links = np.concatenate(links) if links else np.zeros(0, dtype=np.int32)
    joined_loads = np.concatenate(loads) if loads else np.zeros(0, dtype=np.float64)
    return int(class_of.max(initial=-1)) + 1, np.array(first, dtype=np.int32), joined_links, joined_loads
