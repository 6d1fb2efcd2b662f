"""A cluster: groups of equal nodes, and the fabric that joins them."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from sandtable.cluster.device import Device
from sandtable.cluster.fabric import Fabric, Site
from sandtable.cluster.node import NodeKind
from sandtable.errors import ClusterError

__all__ = ["Cluster", "NodeGroup"]

Ints = npt.NDArray[np.int32]

MAX_GPUS = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """`num_nodes` nodes of one kind."""

    kind: NodeKind
    num_nodes: int


Part = TypeVar("Part", NodeGroup, Site)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Nodes called `name`, numbered in the order of `groups`; `title` is the name for people.

    `placement` decides how ranks are dealt to nodes: "node-major" fills node after node, "round-robin" deals one to
    each node in turn, and a tuple fills nodes in its own order (those it leaves out stay empty). `available_nodes` is
    how many nodes exist; 0: as many as needed. `source_file` is the user's file that describes the cluster, if there is
    one.
    """

    name: str
    title: str
    groups: tuple[NodeGroup, ...]
    fabric: Fabric
    placement: str | tuple[int, ...] = "node-major"
    available_nodes: int = 0
    source_file: Path | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for check in (_check_size, _check_sites, _check_capacity, _check_rails, _check_placement):
            problem = check(self)
            if problem:
                raise ClusterError(f"{self.source_file or self.name}: {problem}")

    @property
    def is_uniform(self) -> bool:
        """Whether all nodes are of one kind."""
        return len(self.groups) == 1

    @property
    def node(self) -> NodeKind:
        """The kind of all nodes. Raise ClusterError if they are unequal."""
        if not self.is_uniform:
            kinds = ", ".join(group.kind.name for group in self.groups)
            raise ClusterError(
                f"the nodes of '{self.name}' must be equal for this, but there are {kinds}; use device_of(rank) instead"
            )
        return self.groups[0].kind

    @property
    def device(self) -> Device:
        """The device of all nodes. Raise ClusterError if they differ."""
        devices = {group.kind.device for group in self.groups}
        return devices.pop() if len(devices) == 1 else self.node.device

    @property
    def gpus_per_node(self) -> int:
        """The number of GPUs that every node has: the smallest of unequal nodes."""
        return min(group.kind.num_gpus for group in self.groups)

    @property
    def num_nodes(self) -> int:
        return sum(group.num_nodes for group in self.groups)

    @property
    def num_devices(self) -> int:
        return sum(group.num_nodes * group.kind.num_gpus for group in self.groups)

    def with_nodes(self, num_nodes: int) -> "Cluster":
        """Return the same cluster with its first `num_nodes` nodes, or with more nodes where the file allows."""
        if num_nodes < 1:
            raise ClusterError(f"number of nodes ({num_nodes}) must be at least 1; try --nnodes 1")
        if num_nodes == self.num_nodes:
            return self
        can_grow = self.is_uniform and not self.fabric.sites
        most = (self.available_nodes or num_nodes) if can_grow else self.num_nodes
        if num_nodes > most:
            key = "num_nodes in" if self.is_uniform else "num_nodes in a group of"
            raise ClusterError(
                f"number of nodes ({num_nodes}) must be at most {most}, the number in {self.source_file or self.name}; "
                f"try --nnodes {most}, or raise {key} the file"
            )
        placement = self.placement
        if isinstance(placement, tuple):
            placement = tuple(node for node in placement if node < num_nodes) or "node-major"
        return replace(
            self,
            groups=_first_groups(self.groups, num_nodes),
            fabric=replace(self.fabric, sites=_first(self.fabric.sites, num_nodes)),
            placement=placement,
        )

    def with_memory(self, factor: float) -> "Cluster":
        """Return the same cluster with `factor` times the memory on every device."""
        groups = (replace(group, kind=_with_memory(group.kind, factor)) for group in self.groups)
        return replace(self, groups=tuple(groups))

    def kind_of(self, node: int) -> NodeKind:
        """Return the kind of node number `node`."""
        first = 0
        for group in self.groups:
            if first <= node < first + group.num_nodes:
                return group.kind
            first += group.num_nodes
        raise ClusterError(
            f"a node of '{self.name}' must be between 0 and {self.num_nodes - 1}, but got {node}; choose one of these"
        )

    def device_of(self, rank: int, *, processes_per_node: int | None = None) -> Device:
        """Return the device of `rank`, with `processes_per_node` ranks per node (by default one per GPU)."""
        return self.node_kind_of(rank, processes_per_node=processes_per_node).device

    def node_kind_of(self, rank: int, *, processes_per_node: int | None = None) -> NodeKind:
        """Return the kind of node that `rank` is on, with `processes_per_node` ranks per node."""
        node_of, _ = self.place(num_ranks=rank + 1, ranks_per_node=processes_per_node)
        return self.kind_of(int(node_of[rank]))

    def place(self, *, num_ranks: int | None = None, ranks_per_node: int | None = None) -> tuple[Ints, Ints]:
        """Return the node of every rank, and its GPU there.

        By default there are as many ranks per node as GPUs, and as many ranks as fit.
        """
        counts = [group.num_nodes for group in self.groups]
        gpus = np.repeat([group.kind.num_gpus for group in self.groups], counts).astype(np.int32)
        return _deal(gpus, self.placement, num_ranks=num_ranks, ranks_per_node=ranks_per_node)

    def require(self, world_size: int, *, processes_per_node: int) -> None:
        """Raise ClusterError unless `world_size` ranks, `processes_per_node` per node, get a GPU each."""
        if processes_per_node > self.gpus_per_node:
            raise ClusterError(
                f"processes per node ({processes_per_node}) must be at most the {self.gpus_per_node} GPUs of a node of "
                f"'{self.name}'; lower --nproc-per-node to {self.gpus_per_node}, and add nodes with --nnodes"
            )
        if world_size > self.num_devices:
            needed = -(-world_size // self.gpus_per_node)
            raise ClusterError(
                f"world size {world_size} must be at most the cluster's {self.num_devices} GPUs "
                f"({_shape(self)}); add nodes with --nnodes {needed}"
            )
        needed = -(-world_size // processes_per_node)
        if needed > self.num_nodes:
            raise ClusterError(
                f"world size {world_size} with {processes_per_node} processes per node must fit on the cluster's "
                f"{_plural(self.num_nodes, 'node')}, but needs {needed}; raise --nproc-per-node, or add nodes"
            )


def _deal(
    gpus: Ints, placement: str | tuple[int, ...], *, num_ranks: int | None, ranks_per_node: int | None
) -> tuple[Ints, Ints]:
    """Deal ranks to GPUs like cards to players; node n has `gpus[n]` GPUs. Return each rank's node and its GPU there.

    By default a node gets as many ranks as it has GPUs, and there are as many ranks as fit.
    """
    order = np.asarray(placement if isinstance(placement, tuple) else np.arange(len(gpus)), dtype=np.int32)
    counts = gpus[order]
    if ranks_per_node is not None:
        if not 1 <= ranks_per_node <= counts.min():
            raise ClusterError(
                f"ranks per node ({ranks_per_node}) must be between 1 and the {counts.min()} GPUs of the smallest "
                "node; give a number in that range"
            )
        counts = np.full_like(counts, ranks_per_node)
    node_of = np.repeat(order, counts)
    slot_of = np.arange(len(node_of), dtype=np.int32) - np.repeat(np.cumsum(counts) - counts, counts).astype(np.int32)
    if placement == "round-robin":
        turn = np.argsort(slot_of, kind="stable")
        node_of, slot_of = node_of[turn], slot_of[turn]
    num_ranks = len(node_of) if num_ranks is None else num_ranks
    if not 1 <= num_ranks <= len(node_of):
        raise ClusterError(
            f"the number of ranks ({num_ranks}) must be between 1 and {len(node_of)}, the capacity of the "
            f"{_plural(len(order), 'node')}; add nodes with --nnodes"
        )
    return node_of[:num_ranks], slot_of[:num_ranks]


def _check_size(cluster: Cluster) -> str:
    if cluster.num_devices <= MAX_GPUS:
        return ""
    return f"num_nodes must give at most {MAX_GPUS:,} GPUs, but gives {cluster.num_devices:,}; take fewer nodes"


def _check_sites(cluster: Cluster) -> str:
    sited = sum(site.num_nodes for site in cluster.fabric.sites)
    if not cluster.fabric.sites or sited == cluster.num_nodes:
        return ""
    return (
        f"fabric.sites must hold the cluster's {cluster.num_nodes} nodes together, but hold {sited}; "
        "correct num_nodes of a site or of the nodes"
    )


def _check_capacity(cluster: Cluster) -> str:
    room = cluster.fabric.capacity
    largest = max([site.num_nodes for site in cluster.fabric.sites], default=cluster.num_nodes)
    if not room or largest <= room:
        return ""
    return (
        f"fabric.tiers must join at least the {largest} nodes of a site, but join {room}; raise `below` of a tier, "
        "leave it out in the last, or add a tier"
    )


def _check_rails(cluster: Cluster) -> str:
    if not cluster.fabric.rails:
        return ""
    counts = sorted({group.kind.nics.count for group in cluster.groups})
    if len(counts) > 1:
        return (
            f"fabric.rails must be false unless all nodes have the same number of adapters, but they have {counts}; "
            "leave it out"
        )
    without = next((group.kind for group in cluster.groups if not group.kind.scale_up.has_nvlink), None)
    if without is not None and counts[0] > 1:
        return (
            f"fabric.rails must be false unless GPUs have NVLink to change rails, but scale_up.kind of {without.name} "
            f"is '{without.scale_up.kind}'; leave it out"
        )
    return ""


def _check_placement(cluster: Cluster) -> str:
    order = cluster.placement
    if not isinstance(order, tuple):
        return ""
    outside = [node for node in order if not 0 <= node < cluster.num_nodes]
    if outside:
        return (
            f"placement must name nodes from 0 to {cluster.num_nodes - 1}, but names {outside[0]}; "
            "nodes are numbered in the order of the file"
        )
    if len(set(order)) < len(order):
        twice = next(node for node in order if order.count(node) > 1)
        return f"placement must name each node once, but names {twice} more than once; remove the second"
    return ""


def _with_memory(kind: NodeKind, factor: float) -> NodeKind:
    return replace(kind, device=replace(kind.device, memory_bytes=round(kind.device.memory_bytes * factor)))


def _first_groups(groups: tuple[NodeGroup, ...], num_nodes: int) -> tuple[NodeGroup, ...]:
    """Return the groups of the first `num_nodes` nodes; a single group may also grow."""
    if len(groups) == 1:
        return (replace(groups[0], num_nodes=num_nodes),)
    return _first(groups, num_nodes)


def _first(parts: tuple[Part, ...], num_nodes: int) -> tuple[Part, ...]:
    """Return the groups or sites of the first `num_nodes` nodes."""
    kept = []
    for part in parts:
        if num_nodes > 0:
            kept.append(replace(part, num_nodes=min(part.num_nodes, num_nodes)))
        num_nodes -= part.num_nodes
    return tuple(kept)


def _shape(cluster: Cluster) -> str:
    return " + ".join(f"{_plural(group.num_nodes, 'node')} x {group.kind.num_gpus}" for group in cluster.groups)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
