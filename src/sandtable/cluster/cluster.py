"""A cluster: a number of equal nodes, each with a number of equal devices."""

from dataclasses import dataclass

from sandtable.cluster.device import Device
from sandtable.errors import ClusterError

__all__ = ["Cluster", "Node"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine: `num_gpus` devices of one kind. A device is what torch counts: a MI250X card is two of them."""

    num_gpus: int
    device: Device


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """`num_nodes` machines of the kind called `name`; `title` is its name for people."""

    name: str
    title: str
    node: Node
    num_nodes: int

    @property
    def device(self) -> Device:
        return self.node.device

    @property
    def gpus_per_node(self) -> int:
        return self.node.num_gpus

    @property
    def num_devices(self) -> int:
        return self.num_nodes * self.node.num_gpus

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
                f"({_plural(self.num_nodes, 'node')} x {self.gpus_per_node}); add nodes with --nnodes {needed}"
            )


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
