"""Rules that tie nodes, fabric and placement together, and the first so many nodes of a cluster."""

from dataclasses import replace

from sandtable.cluster.cluster import Cluster, NodeGroup
from sandtable.cluster.fabric import Fabric, Site
from sandtable.cluster.files import File
from sandtable.errors import ClusterError

__all__ = ["assemble", "take"]

MAX_GPUS = 10_000_000


def assemble(cluster: Cluster, *, file: File) -> Cluster:
    """`cluster`, or a ClusterError naming the key of `file` that does not fit the others."""
    for check in (_size, _sites, _capacity, _rails, _placement):
        problem = check(cluster)
        if problem:
            raise ClusterError(f"{file}: {problem}")
    return cluster


def take(cluster: Cluster, nodes: int, *, file: File) -> Cluster:
    """The first `nodes` nodes of `cluster`."""
    if nodes < 1:
        raise ClusterError(f"number of nodes ({nodes}) must be at least 1; try --nnodes 1")
    if nodes > cluster.num_nodes:
        key = "num_nodes in a group of" if len(cluster.groups) > 1 else "num_nodes in"
        raise ClusterError(
            f"number of nodes ({nodes}) must be at most the {cluster.num_nodes} that {file} says there are; "
            f"try --nnodes {cluster.num_nodes}, or raise {key} the file"
        )
    if nodes == cluster.num_nodes:
        return cluster
    placement = cluster.placement
    if isinstance(placement, tuple):
        placement = tuple(node for node in placement if node < nodes) or "node-major"
    return replace(
        cluster,
        groups=_first_groups(cluster.groups, nodes),
        fabric=_first_sites(cluster.fabric, nodes),
        placement=placement,
    )


def _size(cluster: Cluster) -> str:
    if cluster.num_devices <= MAX_GPUS:
        return ""
    return f"num_nodes must give at most {MAX_GPUS:,} GPUs, but gives {cluster.num_devices:,}; take fewer nodes"


def _sites(cluster: Cluster) -> str:
    sited = sum(site.num_nodes for site in cluster.fabric.sites)
    if not cluster.fabric.sites or sited == cluster.num_nodes:
        return ""
    return (
        f"fabric.sites must hold the cluster's {cluster.num_nodes} nodes together, but hold {sited}; "
        "correct num_nodes of a site or of the nodes"
    )


def _capacity(cluster: Cluster) -> str:
    room = cluster.fabric.capacity
    largest = max([site.num_nodes for site in cluster.fabric.sites], default=cluster.num_nodes)
    if not room or largest <= room:
        return ""
    return (
        f"fabric.tiers must join at least the {largest} nodes of a site, but join {room}; raise `below` of a tier, "
        "leave it out in the last, or add a tier"
    )


def _rails(cluster: Cluster) -> str:
    if not cluster.fabric.rails:
        return ""
    counts = sorted({group.kind.nics.count for group in cluster.groups})
    if len(counts) > 1:
        return (
            f"fabric.rails must be false unless all nodes have as many adapters, but they have {counts}; leave it out"
        )
    without = next((group.kind for group in cluster.groups if not group.kind.scale_up.has_nvlink), None)
    if without is not None and counts[0] > 1:
        return (
            f"fabric.rails must be false unless GPUs have NVLink to change rails, but scale_up.kind of {without.name} "
            f"is '{without.scale_up.kind}'; leave it out"
        )
    return ""


def _placement(cluster: Cluster) -> str:
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
        return f"placement must name a node once, but names {twice} more often; leave out the second"
    return ""


def _first_groups(groups: tuple[NodeGroup, ...], nodes: int) -> tuple[NodeGroup, ...]:
    kept = []
    for group in groups:
        if nodes > 0:
            kept.append(replace(group, num_nodes=min(group.num_nodes, nodes)))
        nodes -= group.num_nodes
    return tuple(kept)


def _first_sites(fabric: Fabric, nodes: int) -> Fabric:
    kept: list[Site] = []
    for site in fabric.sites:
        if nodes > 0:
            kept.append(replace(site, num_nodes=min(site.num_nodes, nodes)))
        nodes -= site.num_nodes
    return replace(fabric, sites=tuple(kept))
