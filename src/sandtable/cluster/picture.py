"""A cluster as a tree of switches, nodes and GPUs: plain data to draw, with equal neighbours drawn once and counted."""

from itertools import pairwise
from typing import Any

import numpy as np

from sandtable.cluster.cluster import Cluster
from sandtable.cluster.links import Fleet, TierLinks, switch_name
from sandtable.cluster.node import NodeKind
from sandtable.units import GB

__all__ = ["describe_tier", "draw"]

Branch = dict[str, Any]


def draw(cluster: Cluster, fleet: Fleet, tiers: tuple[TierLinks, ...]) -> Branch:
    """The tree from the top. A branch stands for `count` equal things in a row, the first of them number `first`.

    `kind` is network, site, a switch tier's name, node or gpu. `link` names the tier of its link upwards and
    `gb_per_s` what that link achieves out of one of them (out of all adapters of a node, all rails of a leaf).
    """
    return _Drawing(cluster, fleet, tiers).top()


def describe_tier(links: TierLinks) -> dict[str, Any]:
    """A tier with the range of its rates."""
    tier = links.tier
    return {
        "name": tier.name,
        "title": tier.title,
        "first": tier.first,
        "num_links": tier.num_links,
        "num_units": tier.num_links // tier.links_per_unit,
        "links_per_unit": tier.links_per_unit,
        "gb_per_s": _range(links.bandwidth_bytes_per_s / GB),
        "nominal_gb_per_s": _range(links.nominal_bytes_per_s / GB),
        "latency_us": _range(links.latency_ns / 1000),
    }


class _Drawing:
    def __init__(self, cluster: Cluster, fleet: Fleet, tiers: tuple[TierLinks, ...]) -> None:
        self.cluster, self.fleet = cluster, fleet
        self.rate = {each.tier.name: each.bandwidth_bytes_per_s / GB for each in tiers}
        self.rails = cluster.groups[0].kind.nics.count if cluster.fabric.rails else 1

    def top(self) -> Branch:
        sites = self.cluster.fabric.sites
        if not sites:
            return self._switch(len(self.cluster.fabric.tiers) - 1, 0, len(self.fleet.kind))
        children, start = [], 0
        for index, site in enumerate(sites):
            inner = self._switch(len(self.cluster.fabric.tiers) - 1, start, start + site.num_nodes)
            rate = float(self.rate["site"][2 * index])
            children.append(_branch("site", site.name, index, children=[inner], link="site", gb_per_s=rate))
            start += site.num_nodes
        return _branch("network", "between sites", 0, children=children)

    def _switch(self, level: int, start: int, stop: int) -> Branch:
        """The switch of tier `level` above nodes `start` to `stop`; below the first tier there is only one switch."""
        if level < 0:
            return _branch("switch", "switch", 0, children=self._nodes(start, stop))
        unit = int(self.fleet.switch[level][start])
        if level == 0:
            children = self._nodes(start, stop)
        else:
            edges = start + np.flatnonzero(np.diff(self.fleet.switch[level - 1][start:stop])) + 1
            bounds = [start, *(int(edge) for edge in edges), stop]
            children = [self._switch(level - 1, a, b) for a, b in pairwise(bounds)]
        name = switch_name(level)
        return _branch(name, name, unit, children=_merge(children), **self._uplink(level, unit))

    def _uplink(self, level: int, unit: int) -> dict[str, Any]:
        name = switch_name(level)
        if name not in self.rate:
            return {}
        split = self.rails if level == 0 else 1
        rate = float(self.rate[name][2 * unit * split]) * split
        return {"link": name, "gb_per_s": rate} | ({"rails": split} if split > 1 else {})

    def _nodes(self, start: int, stop: int) -> list[Branch]:
        return _merge([self._node(node) for node in _firsts(self.fleet.kind, start, stop)], until=stop)

    def _node(self, node: int) -> Branch:
        kind: NodeKind = self.cluster.groups[int(self.fleet.kind[node])].kind
        nics = kind.nics
        gpu = _branch(
            "gpu",
            kind.device.name,
            int(self.fleet.first_gpu[node]),
            link="gpu",
            gb_per_s=float(self.rate["gpu"][2 * self.fleet.first_gpu[node]]),
            scale_up=kind.scale_up.kind,
        )
        gpu["count"] = kind.num_gpus
        rate = float(self.rate["nic"][2 * self.fleet.first_nic[node]]) * nics.count if "nic" in self.rate else 0.0
        about: dict[str, Any] = {"link": "nic", "num_nics": nics.count, "transport": nics.transport}
        return _branch("node", kind.title, node, children=[gpu], gb_per_s=rate, **about)


def _branch(
    kind: str, label: str, first: int, *, children: list[Branch] | None = None, link: str = "", **more: Any
) -> Branch:
    made = {"kind": kind, "label": label, "first": first, "count": 1, "link": link, "gb_per_s": 0.0}
    return made | more | {"children": children or []}


def _firsts(kinds: Any, start: int, stop: int) -> list[int]:
    """The first node of each run of equal kinds."""
    return [start, *(int(edge) for edge in start + np.flatnonzero(np.diff(kinds[start:stop])) + 1)]


def _merge(branches: list[Branch], *, until: int | None = None) -> list[Branch]:
    """Equal neighbours as one with their number; with `until`, branches are first of a run that ends at the next."""
    if until is not None:
        ends = [branch["first"] for branch in branches[1:]] + [until]
        return [branch | {"count": end - branch["first"]} for branch, end in zip(branches, ends, strict=True)]
    merged: list[Branch] = []
    for branch in branches:
        if merged and _shape(merged[-1]) == _shape(branch):
            merged[-1] = merged[-1] | {"count": merged[-1]["count"] + 1}
        else:
            merged.append(branch)
    return merged


def _shape(branch: Branch) -> Any:
    """What makes two branches equal to look at: everything but their numbers."""
    rest = tuple((key, branch[key]) for key in branch if key not in ("first", "count", "children"))
    return rest, tuple((child["count"], _shape(child)) for child in branch["children"])


def _range(values: Any) -> dict[str, float]:
    return {"min": float(values.min()), "max": float(values.max())}
