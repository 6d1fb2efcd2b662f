"""A topology as plain data to draw: its tiers with their rates, and its tree of switches, nodes and GPUs.

Equal neighbours in the tree are one branch with a count.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from sandtable.cluster.links import Tier, switch_name
from sandtable.cluster.topology import Topology
from sandtable.units import GB, NS_PER_US

__all__ = ["TierDescription", "TopologyBranch", "TopologyDescription", "ValueRange", "describe_topology"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueRange:
    """The smallest and the largest of some values."""

    min: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TierDescription:
    """A tier of links with the range of their rates."""

    tier: Tier
    gb_per_s: ValueRange
    nominal_gb_per_s: ValueRange
    latency_us: ValueRange


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyBranch:
    """`count` equal neighbours, starting with number `first`, and what is below each.

    `kind` is network, site, switch, the name of a switch tier, node or gpu. `link` names the tier of its link upwards,
    and `gb_per_s` is what that link achieves out of one of them (out of all adapters of a node, all rails of a leaf).
    Only nodes have adapters (`num_nics`, `transport`), and only GPUs have a kind of link among themselves (`scale_up`).
    """

    kind: str
    label: str
    first: int
    count: int = 1
    link: str = ""
    gb_per_s: float = 0.0
    rails: int = 1
    num_nics: int = 0
    transport: str = ""
    scale_up: str = ""
    children: tuple["TopologyBranch", ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyDescription:
    """A cluster to draw: `tiers` from the GPUs outwards, `tree` from the top."""

    name: str
    title: str
    num_nodes: int
    num_gpus: int
    num_ranks: int
    rails: bool
    tiers: tuple[TierDescription, ...]
    tree: TopologyBranch


def describe_topology(topology: Topology) -> TopologyDescription:
    """Describe the tiers and the tree of `topology`."""
    cluster = topology.cluster
    return TopologyDescription(
        name=cluster.name,
        title=cluster.title,
        num_nodes=topology.num_nodes,
        num_gpus=cluster.num_devices,
        num_ranks=topology.num_ranks,
        rails=cluster.fabric.rails,
        tiers=tuple(_describe_tier(topology, tier) for tier in topology.tiers),
        tree=_TreeBuilder(topology).build(),
    )


def _describe_tier(topology: Topology, tier: Tier) -> TierDescription:
    links = slice(tier.first, tier.first + tier.num_links)
    return TierDescription(
        tier=tier,
        gb_per_s=_range(topology.bandwidth_bytes_per_s[links] / GB),
        nominal_gb_per_s=_range(topology.nominal_bytes_per_s[links] / GB),
        latency_us=_range(topology.latency_ns[links] / NS_PER_US),
    )


class _TreeBuilder:
    """Builds the tree from the top down; `rate` has the achieved GB/s of every link by tier."""

    def __init__(self, topology: Topology) -> None:
        self.cluster, self.fleet, self.rails = topology.cluster, topology.fleet, topology.num_rails
        self.rate = {
            tier.name: topology.bandwidth_bytes_per_s[tier.first : tier.first + tier.num_links] / GB
            for tier in topology.tiers
        }

    def build(self) -> TopologyBranch:
        fabric = self.cluster.fabric
        top = len(fabric.tiers) - 1
        if not fabric.sites:
            return self._switch(top, 0, len(self.fleet.kind))
        children, start = [], 0
        for index, site in enumerate(fabric.sites):
            inner = self._switch(top, start, start + site.num_nodes)
            rate = float(self.rate["site"][2 * index])
            children.append(
                TopologyBranch(kind="site", label=site.name, first=index, children=(inner,), link="site", gb_per_s=rate)
            )
            start += site.num_nodes
        return TopologyBranch(kind="network", label="between sites", first=0, children=tuple(children))

    def _switch(self, level: int, start: int, stop: int) -> TopologyBranch:
        """Return the switch of tier `level` above nodes `start` to `stop`; without tiers there is only one switch."""
        if level < 0:
            return TopologyBranch(kind="switch", label="switch", first=0, children=self._nodes(start, stop))
        unit = int(self.fleet.switch[level][start])
        if level == 0:
            children = self._nodes(start, stop)
        else:
            edges = start + np.flatnonzero(np.diff(self.fleet.switch[level - 1][start:stop])) + 1
            bounds = [start, *(int(edge) for edge in edges), stop]
            children = _merge([self._switch(level - 1, low, high) for low, high in pairwise(bounds)])
        name = switch_name(level)
        branch = TopologyBranch(kind=name, label=name, first=unit, children=children)
        return self._with_uplink(branch, level, unit)

    def _with_uplink(self, branch: TopologyBranch, level: int, unit: int) -> TopologyBranch:
        name = switch_name(level)
        if name not in self.rate:
            return branch
        rails = self.rails if level == 0 else 1
        return replace(branch, link=name, gb_per_s=float(self.rate[name][2 * unit * rails]) * rails, rails=rails)

    def _nodes(self, start: int, stop: int) -> tuple[TopologyBranch, ...]:
        """Return one branch for each run of nodes of one kind."""
        edges = start + np.flatnonzero(np.diff(self.fleet.kind[start:stop])) + 1
        bounds = [start, *(int(edge) for edge in edges), stop]
        return tuple(self._node(first, count=end - first) for first, end in pairwise(bounds))

    def _node(self, node: int, *, count: int) -> TopologyBranch:
        kind = self.cluster.groups[int(self.fleet.kind[node])].kind
        first_gpu, nics = int(self.fleet.first_gpu[node]), kind.nics
        gpu = TopologyBranch(
            kind="gpu",
            label=kind.device.name,
            first=first_gpu,
            count=kind.num_gpus,
            link="gpu",
            gb_per_s=float(self.rate["gpu"][2 * first_gpu]),
            scale_up=kind.scale_up.kind,
        )
        rate = float(self.rate["nic"][2 * self.fleet.first_nic[node]]) * nics.count if "nic" in self.rate else 0.0
        return TopologyBranch(
            kind="node",
            label=kind.title,
            first=node,
            count=count,
            link="nic",
            gb_per_s=rate,
            num_nics=nics.count,
            transport=nics.transport,
            children=(gpu,),
        )


def _merge(branches: Sequence[TopologyBranch]) -> tuple[TopologyBranch, ...]:
    """Merge equal neighbours into one branch with their number."""
    merged: list[TopologyBranch] = []
    for branch in branches:
        if merged and _same_shape(merged[-1], branch):
            merged[-1] = replace(merged[-1], count=merged[-1].count + 1)
        else:
            merged.append(branch)
    return tuple(merged)


def _same_shape(left: TopologyBranch, right: TopologyBranch) -> bool:
    """Return whether two branches look alike: only their numbers differ, and their counts at the top."""
    return _unnumbered(left, count=1) == _unnumbered(right, count=1)


def _unnumbered(branch: TopologyBranch, *, count: int) -> TopologyBranch:
    children = tuple(_unnumbered(child, count=child.count) for child in branch.children)
    return replace(branch, first=0, count=count, children=children)


def _range(values: npt.NDArray[np.float64]) -> ValueRange:
    return ValueRange(min=float(values.min()), max=float(values.max()))
