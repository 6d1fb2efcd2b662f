"""A cluster: groups of equal nodes, and the fabric that joins them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sandtable.cluster.device import Device
from sandtable.cluster.fabric import Fabric
from sandtable.cluster.node import NodeKind
from sandtable.cluster.placement import deal
from sandtable.errors import ClusterError

__all__ = ["Cluster", "NodeGroup"]

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """`num_nodes` nodes of one kind."""

    kind: NodeKind
    num_nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Nodes called `name`, numbered in the order of `groups`; `title` is its name for people.

    `placement` says how ranks are dealt to nodes: "node-major" fills node after node, "round-robin" deals one to each
    node in turn, and a tuple fills nodes in its own order (those it leaves out stay empty).
    """

    name: str
    title: str
    groups: tuple[NodeGroup, ...]
    fabric: Fabric
    placement: str | tuple[int, ...] = "node-major"

    @property
    def is_uniform(self) -> bool:
        """Whether all nodes are of one kind."""
        return len(self.groups) == 1

    @property
    def node(self) -> NodeKind:
        """The kind of all nodes; a ClusterError where they are unequal."""
        if not self.is_uniform:
            kinds = ", ".join(group.kind.name for group in self.groups)
            raise ClusterError(
                f"the nodes of '{self.name}' must be equal for this, but there are {kinds}; ask device_of(rank) instead"
            )
        return self.groups[0].kind

    @property
    def device(self) -> Device:
        """The device of all nodes; a ClusterError where they differ."""
        devices = {group.kind.device for group in self.groups}
        return devices.pop() if len(devices) == 1 else self.node.device

    @property
    def gpus_per_node(self) -> int:
        """The GPUs every node has: of unequal nodes the smallest number."""
        return min(group.kind.num_gpus for group in self.groups)

    @property
    def num_nodes(self) -> int:
        return sum(group.num_nodes for group in self.groups)

    @property
    def num_devices(self) -> int:
        return sum(group.num_nodes * group.kind.num_gpus for group in self.groups)

    def kind_of(self, node: int) -> NodeKind:
        """The kind of node number `node`."""
        for group in self.groups:
            if 0 <= node < group.num_nodes:
                return group.kind
            node -= group.num_nodes
        raise ClusterError(f"the node must be one of the {self.num_nodes} of '{self.name}'; the first is 0")

    def device_of(self, rank: int, *, processes_per_node: int | None = None) -> Device:
        """The device that `rank` gets, with `processes_per_node` ranks a node (every GPU without)."""
        node_of, _ = self.place(num_ranks=rank + 1, ranks_per_node=processes_per_node)
        return self.kind_of(int(node_of[rank])).device

    def place(self, *, num_ranks: int | None = None, ranks_per_node: int | None = None) -> tuple[Ints, Ints]:
        """The node of every rank, and its GPU there. Without `ranks_per_node` every GPU, without `num_ranks` all."""
        counts = [group.num_nodes for group in self.groups]
        gpus = np.repeat([group.kind.num_gpus for group in self.groups], counts).astype(np.int32)
        return deal(gpus, self.placement, num_ranks=num_ranks, ranks_per_node=ranks_per_node)

    def require(self, world_size: int, *, processes_per_node: int) -> None:
        """Raise ClusterError unless each of `world_size` ranks, `processes_per_node` a node, gets a GPU of its own."""
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
                f"world size {world_size} with {processes_per_node} processes a node must need at most the cluster's "
                f"{_plural(self.num_nodes, 'node')}, but needs {needed}; raise --nproc-per-node, or add nodes"
            )


def _shape(cluster: Cluster) -> str:
    return " + ".join(f"{_plural(group.num_nodes, 'node')} x {group.kind.num_gpus}" for group in cluster.groups)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
