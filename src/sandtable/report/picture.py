"""Picture: the cluster as boxes, each with the utilisation of the links out of it.

The tree comes from `describe_topology`, in which equal neighbours are one branch with a count. It is unfolded here,
since equal machines need not carry equal loads: every node and switch gets the utilisation of its own links.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sandtable.cluster import TierDescription, TopologyBranch, ValueRange, describe_topology
from sandtable.engine.timeline import Timeline

__all__ = ["NodeBox", "Picture", "PictureTier", "SwitchBox", "draw_picture"]

MAX_DETAILED_NODES = 512
MAX_BOXES = 2048
_DIGITS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureTier:
    """A tier of links, and the range of their rates."""

    name: str
    title: str
    gb_per_s: ValueRange
    num_links: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBox:
    """`count` neighbouring nodes below one switch, the first of them number `node`; `above` is that switch.

    `worst` is the utilisation of the fullest link of each tier. `links` is that of each GPU and adapter, for clusters
    of moderate size. `used`: whether any rank is there. Of the two directions of a link the fuller one counts.
    """

    node: int
    label: str
    above: int | None
    count: int
    worst: dict[str, float]
    links: dict[str, list[float]] | None
    used: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchBox:
    """A switch, a site or the network, below `above`, with the utilisation of its uplinks."""

    kind: str
    name: str
    above: int | None
    links: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Up to `nodes_per_box` nodes below one switch are one box; `boxes` are in order of node number."""

    tiers: list[PictureTier]
    num_nodes: int
    nodes_per_box: int
    boxes: list[NodeBox]
    switches: list[SwitchBox]


def draw_picture(timeline: Timeline) -> Picture:
    """Return the whole cluster; a huge one with several nodes per box."""
    topology = timeline.topology
    description = describe_topology(topology)
    loads = _Loads(description.tiers, np.asarray(timeline.link_loads.utilisation))
    walk = _Walk(loads)
    walk.visit(description.tree, above=None)
    used = set(np.unique(np.asarray(topology.node_of)).tolist())
    per_box = -(-len(walk.nodes) // MAX_BOXES)
    below: dict[int | None, list[_Node]] = {}
    for node in walk.nodes:
        below.setdefault(node.above, []).append(node)
    is_detailed = len(walk.nodes) <= MAX_DETAILED_NODES
    boxes = [
        _box(nodes[first : first + per_box], used, is_detailed=is_detailed)
        for nodes in below.values()
        for first in range(0, len(nodes), per_box)
    ]
    return Picture(
        tiers=[
            PictureTier(
                name=described.tier.name,
                title=described.tier.title,
                gb_per_s=described.gb_per_s,
                num_links=described.tier.num_links,
            )
            for described in description.tiers
        ],
        num_nodes=len(walk.nodes),
        nodes_per_box=per_box,
        boxes=boxes,
        switches=walk.switches,
    )


class _Loads:
    """The utilisation of the fuller direction, by tier and unit."""

    def __init__(self, tiers: Sequence[TierDescription], utilisation: npt.NDArray[np.float64]) -> None:
        self.of: dict[str, npt.NDArray[np.float64]] = {}
        for tier in (described.tier for described in tiers):
            part = utilisation[tier.first : tier.first + tier.num_links]
            self.of[tier.name] = part.reshape(-1, tier.links_per_unit).max(axis=1)

    def units(self, tier: str, first: int, count: int) -> list[float]:
        loads = self.of.get(tier)
        return [] if loads is None else [round(float(load), _DIGITS) for load in loads[first : first + count]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    number: int
    label: str
    above: int | None
    links: dict[str, list[float]]


class _Walk:
    """Unfolds the tree: visits every branch `count` times, and numbers units in order."""

    def __init__(self, loads: _Loads) -> None:
        self.loads = loads
        self.nodes: list[_Node] = []
        self.switches: list[SwitchBox] = []
        self._next: Counter[str] = Counter()

    def visit(self, branch: TopologyBranch, *, above: int | None) -> None:
        for _ in range(branch.count):
            if branch.kind == "node":
                self._node(branch, self._count(branch.kind, 1), above)
            else:
                place = self._switch(branch, self._count(branch.kind, 1), above)
                for child in branch.children:
                    self.visit(child, above=place)

    def _switch(self, branch: TopologyBranch, number: int, above: int | None) -> int:
        rails = branch.rails
        name = branch.label if branch.kind in ("site", "network", "switch") else f"{branch.label} {number}"
        self.switches.append(
            SwitchBox(
                kind=branch.kind,
                name=name,
                above=above,
                links=self.loads.units(branch.link, number * rails, rails),
            )
        )
        return len(self.switches) - 1

    def _node(self, branch: TopologyBranch, number: int, above: int | None) -> None:
        gpus, nics = branch.children[0].count, branch.num_nics
        links = {"gpu": self._take("gpu", gpus), "nic": self._take("nic", nics)}
        if branch.children[0].scale_up in ("pcie", "host"):
            links["host"] = self._take("host", 1)
        links = {tier: values for tier, values in links.items() if values}
        self.nodes.append(_Node(number=number, label=branch.label, above=above, links=links))

    def _take(self, tier: str, count: int) -> list[float]:
        return self.loads.units(tier, self._count(tier, count), count)

    def _count(self, kind: str, number: int) -> int:
        """Take the next `number` units of a kind, and return the index of the first."""
        first = self._next[kind]
        self._next[kind] += number
        return first


def _box(nodes: list[_Node], used: set[int], *, is_detailed: bool) -> NodeBox:
    tiers = dict.fromkeys(tier for node in nodes for tier in node.links)
    return NodeBox(
        node=nodes[0].number,
        label=nodes[0].label,
        above=nodes[0].above,
        count=len(nodes),
        worst={tier: max(max(node.links.get(tier, [0.0])) for node in nodes) for tier in tiers},
        links=nodes[0].links if is_detailed else None,
        used=any(node.number in used for node in nodes),
    )
