"""Picture: the cluster as boxes, each with how full the links out of it are.

The tree comes from `Topology.describe`, in which equal neighbours are one branch with a count. It is unfolded here,
since equal machines need not be equally loaded: every node and every switch gets the utilisation of its own links.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sandtable.report.needs import Timeline

__all__ = ["Picture", "draw_picture"]

MAX_DETAILED_NODES = 512
MAX_BOXES = 2048
_DIGITS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Up to `nodes_per_box` nodes below one switch are one box; `boxes` are in order of node number.

    A box has the fullest link of each tier (`worst`) and, for clusters of moderate size, each GPU's and adapter's own
    (`links`). Utilisation is that of the fuller direction.
    """

    tiers: list[dict[str, Any]]
    num_nodes: int
    nodes_per_box: int
    boxes: list[dict[str, Any]]
    switches: list[dict[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def draw_picture(timeline: Timeline) -> Picture:
    """The whole cluster, or if it is huge several nodes a box."""
    topology = timeline.topology
    about = topology.describe()
    loads = _Loads(about["tiers"], np.asarray(timeline.link_loads.utilisation))
    walk = _Walk(loads)
    walk.visit(about["tree"], above=None)
    used = set(np.unique(np.asarray(topology.node_of)).tolist())
    for node in walk.nodes:
        node["used"] = node["node"] in used
    per_box = -(-len(walk.nodes) // MAX_BOXES)
    below: dict[int | None, list[dict[str, Any]]] = {}
    for node in walk.nodes:
        below.setdefault(node["above"], []).append(node)
    boxes = [_box(nodes[k : k + per_box]) for nodes in below.values() for k in range(0, len(nodes), per_box)]
    if len(walk.nodes) > MAX_DETAILED_NODES:
        for box in boxes:
            del box["links"]
    return Picture(
        tiers=[
            {"name": tier["name"], "title": tier["title"], "gb_per_s": tier["gb_per_s"], "num_links": tier["num_links"]}
            for tier in about["tiers"]
        ],
        num_nodes=len(walk.nodes),
        nodes_per_box=per_box,
        boxes=boxes,
        switches=walk.switches,
    )


class _Loads:
    """Utilisation by tier and unit, of the fuller direction."""

    def __init__(self, tiers: list[dict[str, Any]], utilisation: npt.NDArray[np.float64]) -> None:
        self.of: dict[str, npt.NDArray[np.float64]] = {}
        for tier in tiers:
            part = utilisation[tier["first"] : tier["first"] + tier["num_links"]]
            self.of[tier["name"]] = part.reshape(-1, tier["links_per_unit"]).max(axis=1)

    def units(self, tier: str, first: int, count: int) -> list[float]:
        found = self.of.get(tier)
        return [] if found is None else [round(float(value), _DIGITS) for value in found[first : first + count]]


class _Walk:
    """Unfolds the tree: every branch as often as it counts, units numbered as they come."""

    def __init__(self, loads: _Loads) -> None:
        self.loads = loads
        self.nodes: list[dict[str, Any]] = []
        self.switches: list[dict[str, Any]] = []
        self._next: Counter[str] = Counter()

    def visit(self, branch: dict[str, Any], *, above: int | None) -> None:
        for _ in range(branch["count"]):
            if branch["kind"] == "node":
                self._node(branch, self._count(branch["kind"], 1), above)
            else:
                place = self._switch(branch, self._count(branch["kind"], 1), above)
                for child in branch["children"]:
                    self.visit(child, above=place)

    def _switch(self, branch: dict[str, Any], number: int, above: int | None) -> int:
        rails = int(branch.get("rails", 1))
        name = branch["label"] if branch["kind"] in ("site", "network", "switch") else f"{branch['label']} {number}"
        self.switches.append(
            {
                "kind": branch["kind"],
                "name": name,
                "above": above,
                "links": self.loads.units(branch["link"], number * rails, rails),
            }
        )
        return len(self.switches) - 1

    def _node(self, branch: dict[str, Any], number: int, above: int | None) -> None:
        gpus, nics = branch["children"][0]["count"], branch["num_nics"]
        links = {"gpu": self._take("gpu", gpus), "nic": self._take("nic", nics)}
        if branch["children"][0]["scale_up"] in ("pcie", "host"):
            links["host"] = self._take("host", 1)
        links = {tier: values for tier, values in links.items() if values}
        self.nodes.append({"node": number, "label": branch["label"], "above": above, "links": links})

    def _take(self, tier: str, count: int) -> list[float]:
        return self.loads.units(tier, self._count(tier, count), count)

    def _count(self, kind: str, number: int) -> int:
        """The number of the first of the next so many things of this kind."""
        first = self._next[kind]
        self._next[kind] += number
        return first


def _box(nodes: list[dict[str, Any]]) -> dict[str, Any]:
    tiers = dict.fromkeys(tier for node in nodes for tier in node["links"])
    worst = {tier: max(max(node["links"].get(tier, [0.0])) for node in nodes) for tier in tiers}
    return nodes[0] | {"count": len(nodes), "worst": worst, "used": any(node["used"] for node in nodes)}
