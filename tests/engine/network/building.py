"""Small clusters to plan on."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from sandtable.cluster import load
from sandtable.cluster.cluster import Cluster, NodeGroup
from sandtable.cluster.topology import Topology
from sandtable.engine.network import Planner, Transfer

MIB, GIB = 2**20, 2**30

SIZED = {
    # bytes in and out of one of n members, for a message of s bytes
    "all_reduce": lambda s, n: (s, s),
    "broadcast": lambda s, n: (s, s),
    "reduce": lambda s, n: (s, s),
    "all_to_all": lambda s, n: (s, s),
    "all_gather": lambda s, n: (s // n, s),
    "gather": lambda s, n: (s // n, s),
    "reduce_scatter": lambda s, n: (s, s // n),
    "scatter": lambda s, n: (s, s // n),
    "barrier": lambda s, n: (0, 0),
}


def topology(machine: str = "dgx-h100", nodes: int = 1) -> Topology:
    return Topology(load(machine, nodes=nodes))


def plan(
    op: str,
    size: int,
    groups: npt.ArrayLike,
    wires: Topology,
    *,
    backend: str = "nccl",
    algorithm: str | None = None,
    root: int = 0,
) -> Transfer:
    """`op` on a message of `size` bytes."""
    bytes_in, bytes_out = SIZED[op](size, np.asarray(groups).shape[1])
    planner = Planner(wires, backend=backend)
    return planner.collective(op, bytes_in=bytes_in, bytes_out=bytes_out, groups=groups, algorithm=algorithm, root=root)


def with_slow_adapters(machine: str, *, share: float) -> Topology:
    """Two nodes, the second with adapters of `share` of the bandwidth."""
    cluster = load(machine, nodes=1)
    kind = cluster.node
    nics = replace(kind.nics, bandwidth_bytes_per_s=kind.nics.bandwidth_bytes_per_s * share)
    slow = NodeGroup(kind=replace(kind, name="slow", nics=nics), num_nodes=1)
    unequal: Cluster = replace(cluster, groups=(*cluster.groups, slow))
    return Topology(unequal)


def on_tier(transfer: Transfer, wires: Topology, tier_name: str, *, way: int = 0) -> npt.NDArray[np.float64]:
    """Bytes over every link of a tier in one direction: 0 out, 1 in."""
    tier = wires.tier(tier_name)
    assert tier is not None
    every = np.zeros(wires.num_links)
    every[transfer.links] = transfer.bytes_on_links
    return every[tier.first : tier.first + tier.num_links].reshape(-1, 2)[:, way]
