"""Every link of a cluster as a number, and the links that a message crosses from rank to rank.

Picture a road map without the roads drawn: links of one tier (GPU ports, adapters, uplinks of leaf switches) are
numbered by formula, so a route is arithmetic on node numbers, and 98,304 GPUs are a few arrays. Each direction is a
separate link: *out* is away from the GPU, *in* towards it.

How hardware becomes links:

- A GPU has one port to its node's scale-up network. NVSwitch is exactly that. In a mesh (DGX-1, xGMI) not all pairs are
  neighbours; the port stands for its links together, which is what rings and trees over all GPUs get.
- GPUs without NVLink send through the node's PCIe root and memory, one shared link (`host`).
- To other nodes, a GPU with NVLink sends over PCIe to its adapter. PCIe is assumed to be as wide as the adapter, and
  the NVLink port is not touched. A GPU without NVLink uses its port and the root for that too.
- With rails, a message for another rail first goes over NVLink to a GPU whose adapter is on that rail (NCCL's PXN).
- A switch's uplinks are one link; its inside is never full.
"""

import copy
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from sandtable.cluster.cluster import Cluster
from sandtable.cluster.device import Device
from sandtable.cluster.links import Tier, fleet_of, switch_name, tiers_of
from sandtable.cluster.node import NodeKind
from sandtable.errors import ClusterError

__all__ = ["Tier", "Topology"]

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]

_OUT, _IN = 0, 1
_INTRA = ("gpu", "host")


class Topology:
    """The links and routes of `cluster` with `num_ranks` ranks, `ranks_per_node` per node (by default one per GPU).

    `node_of`, `slot_of`, `nic_of` and `device_index` have one entry per rank: its node, its GPU there, its adapter
    among all of the cluster, its entry in `devices`. `bandwidth_bytes_per_s` (achievable), `nominal_bytes_per_s` and
    `latency_ns` have one entry per link; link numbers are those of `tiers`. Treat the arrays as read-only.
    """

    def __init__(self, cluster: Cluster, *, ranks_per_node: int | None = None, num_ranks: int | None = None) -> None:
        self.cluster = cluster
        self.kinds: tuple[NodeKind, ...] = tuple(group.kind for group in cluster.groups)
        self.fleet = fleet = fleet_of(cluster)
        self.kind_of_node, self.site_of_node = fleet.kind, fleet.site
        self.node_of, self.slot_of = cluster.place(num_ranks=num_ranks, ranks_per_node=ranks_per_node)
        self.num_nodes, self.num_ranks = len(fleet.kind), len(self.node_of)
        self.devices: tuple[Device, ...] = tuple(dict.fromkeys(kind.device for kind in self.kinds))
        of_kind = np.array([self.devices.index(kind.device) for kind in self.kinds], dtype=np.int32)
        self.device_index: Ints = of_kind[fleet.kind[self.node_of]]
        self._nic_of_slot = _table([kind.nics.of_gpu for kind in self.kinds])
        self._relay = _table([_relays(kind) for kind in self.kinds])
        everyone = np.arange(self.num_ranks, dtype=np.int32)
        self.nic_of: Ints = fleet.first_nic[self.node_of] + self._nic_in_node(everyone)
        tier_links = tiers_of(cluster, fleet)
        self.tiers: tuple[Tier, ...] = tuple(links.tier for links in tier_links)
        self.nominal_bytes_per_s: Floats = np.concatenate([links.nominal_bytes_per_s for links in tier_links])
        self.bandwidth_bytes_per_s: Floats = np.concatenate([links.bandwidth_bytes_per_s for links in tier_links])
        self.latency_ns: Floats = np.concatenate([links.latency_ns for links in tier_links])
        self.num_links = len(self.latency_ns)

    def tier(self, name: str) -> Tier | None:
        """Return the tier called `name`, or None if this cluster does not have it."""
        return next((tier for tier in self.tiers if tier.name == name), None)

    def tier_of(self, link: int) -> Tier:
        """Return the tier that `link` belongs to."""
        for tier in self.tiers:
            if link in tier:
                return tier
        raise ClusterError(f"the link must be between 0 and {self.num_links - 1}, but got {link}; see Topology.tiers")

    def routes(self, src: npt.ArrayLike, dst: npt.ArrayLike) -> Ints:
        """Return the links from rank `src[i]` to rank `dst[i]` in order, one row per pair, padded with -1."""
        src, dst = np.broadcast_arrays(self._checked(src), self._checked(dst))
        columns = _RouteBuilder(self, src, dst).columns()
        table = np.stack(columns, axis=1).astype(np.int32)
        order = np.argsort(table < 0, axis=1, kind="stable")
        return np.take_along_axis(table, order, axis=1)

    def route_latency_ns(self, routes: Ints) -> Floats:
        """Return the sum of the latencies of each row of `routes`."""
        latency: Floats = np.where(routes >= 0, self.latency_ns[routes], 0.0).sum(axis=1)
        return latency

    def route_bandwidth_bytes_per_s(self, routes: Ints) -> Floats:
        """Return the rate of a lone message on each row of `routes`: its narrowest link's, infinity if it has none."""
        narrowest: Floats = np.where(routes >= 0, self.bandwidth_bytes_per_s[routes], np.inf).min(axis=1)
        return narrowest

    def scaled(self, factors: Mapping[str, float]) -> "Topology":
        """Return the same topology with other bandwidths, such as `{"inter": 0.25}`.

        Names are intra (gpu and host), inter (all others), or the name of a tier.
        """
        other = copy.copy(self)
        scale = np.ones(self.num_links)
        for name, factor in factors.items():
            if not (factor > 0 and np.isfinite(factor)):
                raise ClusterError(f"the scale of {name} links must be a positive number, but got {factor}; try 0.5")
            for tier in self._chosen(name):
                scale[tier.first : tier.first + tier.num_links] *= factor
        other.nominal_bytes_per_s = self.nominal_bytes_per_s * scale
        other.bandwidth_bytes_per_s = self.bandwidth_bytes_per_s * scale
        return other

    def link_name(self, link: int) -> str:
        """Return the name of `link`: `node 3 nic 1 out`, `leaf 2 rail 5 in`."""
        tier = self.tier_of(int(link))
        unit, way = divmod(int(link) - tier.first, tier.links_per_unit)
        direction = "" if tier.links_per_unit == 1 else (" out", " in")[way]
        return f"{self._unit_name(tier.name, unit)}{direction}"

    def _checked(self, ranks: npt.ArrayLike) -> Ints:
        array = np.atleast_1d(np.asarray(ranks)).astype(np.int32)
        outside = (array < 0) | (array >= self.num_ranks)
        if outside.any():
            raise ClusterError(
                f"a rank must be between 0 and {self.num_ranks - 1}, but got {array[outside][0]}; "
                "create the topology with more ranks"
            )
        return array

    def _chosen(self, name: str) -> list[Tier]:
        if name in ("intra", "inter"):
            return [tier for tier in self.tiers if (tier.name in _INTRA) == (name == "intra")]
        tier = self.tier(name)
        if tier is None:
            known = ", ".join(["intra", "inter", *(tier.name for tier in self.tiers)])
            raise ClusterError(
                f"the links to scale must be one of {known} on this cluster, but got '{name}'; choose one"
            )
        return [tier]

    def _unit_name(self, tier: str, unit: int) -> str:
        fleet = self.fleet
        if tier in ("gpu", "nic"):
            first = fleet.first_gpu if tier == "gpu" else fleet.first_nic
            node = int(np.searchsorted(first, unit, side="right")) - 1
            return f"node {node} {tier} {unit - first[node]}"
        if tier == "host":
            return f"node {int(np.flatnonzero(fleet.root == unit)[0])} host"
        if tier == "site":
            return f"site {self.cluster.fabric.sites[unit].name}"
        if tier == "leaf" and self.num_rails > 1:
            return f"leaf {unit // self.num_rails} rail {unit % self.num_rails}"
        return f"{tier} {unit}"

    @property
    def num_rails(self) -> int:
        """The number of a node's adapters with their own leaf switches: 1 without rails."""
        return self.kinds[0].nics.count if self.cluster.fabric.rails else 1

    def _nic_in_node(self, rank: Ints) -> Ints:
        """Return the adapter of each rank, counted within its node."""
        return self._nic_of_slot[self.kind_of_node[self.node_of[rank]], self.slot_of[rank]]


class _RouteBuilder:
    """One column of link numbers for each hop that a message may take; -1 where it does not take it."""

    def __init__(self, topology: Topology, src: Ints, dst: Ints) -> None:
        self.topology, self.fleet = topology, topology.fleet
        self.src, self.dst = src, dst
        self.a, self.b = topology.node_of[src], topology.node_of[dst]
        self.local = (self.a == self.b) & (src != dst)
        self.far = self.a != self.b

    def columns(self) -> list[Ints]:
        """Return the hops from the source outwards, then inwards to the destination."""
        t, fleet = self.topology, self.fleet
        root_a, root_b = fleet.root[self.a], fleet.root[self.b]
        nic_a, nic_b = t._nic_in_node(self.src), t._nic_in_node(self.dst)
        relayed = self.far & (nic_a != nic_b) if t.num_rails > 1 else np.zeros_like(self.far)
        nic_a = np.where(relayed, nic_b, nic_a)
        gpu_a, gpu_b = fleet.first_gpu[self.a] + t.slot_of[self.src], fleet.first_gpu[self.b] + t.slot_of[self.dst]
        relay = fleet.first_gpu[self.a] + t._relay[fleet.kind[self.a], nic_a]
        out = [self._link("gpu", gpu_a, _OUT, self.local | relayed | (self.far & (root_a >= 0)))]
        if t.num_rails > 1:
            out.append(self._link("gpu", relay, _IN, relayed))
        out.append(self._root(root_a, (self.local | self.far) & (root_a >= 0)))
        out.append(self._link("nic", fleet.first_nic[self.a] + nic_a, _OUT, self.far))
        out += self._uplinks(self.a, nic_a, _OUT)
        out.append(self._link("site", fleet.site[self.a], _OUT, fleet.site[self.a] != fleet.site[self.b]))
        back = [self._link("gpu", gpu_b, _IN, self.local | (self.far & (root_b >= 0)))]
        back.append(self._root(root_b, self.far & (root_b >= 0)))
        back.append(self._link("nic", fleet.first_nic[self.b] + nic_b, _IN, self.far))
        back += self._uplinks(self.b, nic_b, _IN)
        back.append(self._link("site", fleet.site[self.b], _IN, fleet.site[self.a] != fleet.site[self.b]))
        return [column for column in out + back[::-1] if column is not None]

    def _uplinks(self, node: Ints, nic: Ints, way: int) -> list[Ints | None]:
        """Return the uplinks on the way: crossed where the two ends are not below the same switch of a tier."""
        columns = []
        for level, switch in enumerate(self.fleet.switch[:-1]):
            name = switch_name(level)
            unit = switch[node]
            if level == 0 and self.topology.num_rails > 1:
                unit = unit * self.topology.num_rails + nic
            columns.append(self._link(name, unit, way, switch[self.a] != switch[self.b]))
        return columns

    def _link(self, name: str, unit: Ints, way: int, used: npt.NDArray[np.bool_]) -> Ints | None:
        tier = self.topology.tier(name)
        return None if tier is None else np.where(used, tier.first + 2 * unit + way, -1)

    def _root(self, unit: Ints, used: npt.NDArray[np.bool_]) -> Ints | None:
        tier = self.topology.tier("host")
        return None if tier is None else np.where(used, tier.first + unit, -1)


def _relays(kind: NodeKind) -> tuple[int, ...]:
    """Return for each adapter the first GPU that uses it (GPU 0 for an adapter without GPUs)."""
    return tuple(kind.nics.of_gpu.index(nic) if nic in kind.nics.of_gpu else 0 for nic in range(kind.nics.count))


def _table(rows: list[tuple[int, ...]]) -> Ints:
    """Return rows of different length as one array, padded with 0."""
    table = np.zeros((len(rows), max(len(row) for row in rows)), dtype=np.int32)
    for index, row in enumerate(rows):
        table[index, : len(row)] = row
    return table
