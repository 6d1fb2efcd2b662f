"""The links of a cluster, tier by tier: how many, how fast, how far, and their names.

A tier's links are numbered by formula: link `first + 2 * unit` leads out of its unit (a GPU, an adapter, a switch) and
the next one leads in. Only the root of a node without NVLink is one link for both directions, since it is memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sandtable.cluster.cluster import Cluster
from sandtable.cluster.fabric import SwitchTier

__all__ = ["Fleet", "Tier", "TierLinks", "fleet_of", "switch_name", "tiers_of"]

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]

_SWITCHES = ("leaf", "spine", "core")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """Links `first` to `first + num_links` of one kind. `links_per_unit` is 2 (out, in), or 1 for a node's root."""

    name: str
    title: str
    first: int
    num_links: int
    links_per_unit: int = 2

    def __contains__(self, link: int) -> bool:
        return self.first <= link < self.first + self.num_links


@dataclass(frozen=True, slots=True, kw_only=True)
class TierLinks:
    """A tier and the rates of its links, one entry per link: nominal, achievable, and latency."""

    tier: Tier
    nominal_bytes_per_s: Floats
    bandwidth_bytes_per_s: Floats
    latency_ns: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The nodes as columns: entry n is node n's kind, first GPU, first adapter, site, and switch on each tier.

    `root` numbers the nodes without NVLink and is -1 for the others. `switch[t][n]` is the switch of tier t above node
    n.
    """

    kind: Ints
    first_gpu: Ints
    first_nic: Ints
    num_gpus: Ints
    num_nics: Ints
    root: Ints
    site: Ints
    switch: tuple[Ints, ...]
    num_switches: tuple[int, ...]


def fleet_of(cluster: Cluster) -> Fleet:
    """Return the nodes of `cluster` as columns, with their GPUs, adapters, roots and switches numbered."""
    kinds = [group.kind for group in cluster.groups]
    kind = np.repeat(np.arange(len(kinds)), [group.num_nodes for group in cluster.groups]).astype(np.int32)
    num_gpus = np.array([node_kind.num_gpus for node_kind in kinds], dtype=np.int32)[kind]
    num_nics = np.array([node_kind.nics.count for node_kind in kinds], dtype=np.int32)[kind]
    rooted = np.array([not node_kind.scale_up.has_nvlink for node_kind in kinds])[kind]
    sizes = [site.num_nodes for site in cluster.fabric.sites] or [len(kind)]
    switch, num_switches = _switches(sizes, cluster.fabric.tiers)
    return Fleet(
        kind=kind,
        first_gpu=_starts(num_gpus),
        first_nic=_starts(num_nics),
        num_gpus=num_gpus,
        num_nics=num_nics,
        root=np.where(rooted, np.cumsum(rooted) - 1, -1).astype(np.int32),
        site=np.repeat(np.arange(len(sizes)), sizes).astype(np.int32),
        switch=switch,
        num_switches=num_switches,
    )


def tiers_of(cluster: Cluster, fleet: Fleet) -> tuple[TierLinks, ...]:
    """Return the tiers of `cluster` from the GPUs outwards, leaving out those it does not have."""
    counter = _Counter()
    tiers = [_gpu_ports(cluster, fleet, counter)]
    if (fleet.root >= 0).any():
        tiers.append(_roots(cluster, fleet, counter))
    if len(fleet.kind) > 1:
        tiers.append(_adapters(cluster, fleet, counter))
        tiers.extend(_uplinks(cluster, fleet, counter))
    if cluster.fabric.sites:
        tiers.append(_site_links(cluster, counter))
    return tuple(tiers)


def switch_name(level: int) -> str:
    """Return the name of the switches of the fabric's tier `level`."""
    return _SWITCHES[level] if level < len(_SWITCHES) else f"tier{level + 1}"


class _Counter:
    """Gives each tier the next free link numbers."""

    def __init__(self) -> None:
        self.next = 0

    def tier(
        self, name: str, title: str, nominal: Floats, efficiency: Floats, latency_ns: Floats, *, per_unit: int = 2
    ) -> TierLinks:
        """Make a tier from columns with one entry per unit; `latency_ns` is for the way out and in together."""
        num_links = per_unit * len(nominal)
        tier = Tier(name=name, title=title, first=self.next, num_links=num_links, links_per_unit=per_unit)
        self.next += tier.num_links
        return TierLinks(
            tier=tier,
            nominal_bytes_per_s=np.repeat(nominal, per_unit),
            bandwidth_bytes_per_s=np.repeat(nominal * efficiency, per_unit),
            latency_ns=np.repeat(latency_ns / per_unit, per_unit),
        )


def _gpu_ports(cluster: Cluster, fleet: Fleet, counter: _Counter) -> TierLinks:
    links = [group.kind.scale_up for group in cluster.groups]
    return counter.tier(
        "gpu",
        "GPU ports",
        np.repeat(_by_node(fleet, [link.bandwidth_bytes_per_s for link in links]), fleet.num_gpus),
        np.repeat(_by_node(fleet, [link.efficiency for link in links]), fleet.num_gpus),
        np.repeat(_by_node(fleet, [link.latency_ns for link in links]), fleet.num_gpus),
    )


def _roots(cluster: Cluster, fleet: Fleet, counter: _Counter) -> TierLinks:
    rooted = fleet.root >= 0
    hosts = [group.kind.host for group in cluster.groups]
    nominal = _by_node(fleet, [host.root_bytes_per_s for host in hosts])[rooted]
    efficiency = _by_node(fleet, [host.efficiency for host in hosts])[rooted]
    return counter.tier("host", "PCIe roots", nominal, efficiency, np.zeros(len(nominal)), per_unit=1)


def _adapters(cluster: Cluster, fleet: Fleet, counter: _Counter) -> TierLinks:
    nics = [group.kind.nics for group in cluster.groups]
    return counter.tier(
        "nic",
        "network adapters",
        np.repeat(_by_node(fleet, [nic.bandwidth_bytes_per_s for nic in nics]), fleet.num_nics),
        np.repeat(_by_node(fleet, [nic.efficiency for nic in nics]), fleet.num_nics),
        np.repeat(_by_node(fleet, [nic.latency_ns for nic in nics]), fleet.num_nics),
    )


def _uplinks(cluster: Cluster, fleet: Fleet, counter: _Counter) -> list[TierLinks]:
    """Return the uplinks of every tier but the top one. A partly used switch still has all its uplinks."""
    rails = cluster.groups[0].kind.nics.count if cluster.fabric.rails else 1
    nics = [group.kind.nics for group in cluster.groups]
    below = _by_node(fleet, [nic.bandwidth_bytes_per_s * nic.count for nic in nics])
    parent = fleet.switch[0] if fleet.switch else np.zeros(0, dtype=np.int32)
    tiers = []
    for level, tier in enumerate(cluster.fabric.tiers[:-1]):
        number = fleet.num_switches[level]
        mean = np.bincount(parent, weights=below, minlength=number) / np.bincount(parent, minlength=number)
        offered = mean * tier.below / tier.oversubscription
        nominal = np.full(number, tier.uplink_bytes_per_s) if tier.uplink_bytes_per_s else offered
        split = rails if level == 0 else 1
        units = np.repeat(nominal / split, split)
        fill, delay = np.full(len(units), tier.efficiency), np.full(len(units), float(tier.latency_ns))
        tiers.append(counter.tier(switch_name(level), f"{switch_name(level)} uplinks", units, fill, delay))
        below, parent = nominal, _parents(fleet, level)
    return tiers


def _site_links(cluster: Cluster, counter: _Counter) -> TierLinks:
    sites = cluster.fabric.sites
    return counter.tier(
        "site",
        "links between sites",
        np.array([site.bandwidth_bytes_per_s for site in sites]),
        np.array([site.efficiency for site in sites]),
        np.array([float(site.latency_ns) for site in sites]),
    )


def _switches(sizes: Sequence[int], tiers: Sequence[SwitchTier]) -> tuple[tuple[Ints, ...], tuple[int, ...]]:
    """Return the switch above each node on every tier, and their number; no switch serves two sites."""
    columns, counts, reach = [], [], 1
    for tier in tiers:
        reach = reach * tier.below if tier.below else max(sizes)
        parts, total = [], 0
        for size in sizes:
            parts.append(total + np.arange(size) // reach)
            total += -(-size // reach)
        columns.append(np.concatenate(parts).astype(np.int32))
        counts.append(total)
    return tuple(columns), tuple(counts)


def _parents(fleet: Fleet, level: int) -> Ints:
    """Return the switch of the next tier above each switch of tier `level`."""
    _, first_node = np.unique(fleet.switch[level], return_index=True)
    return fleet.switch[level + 1][first_node]


def _by_node(fleet: Fleet, values: Sequence[float]) -> Floats:
    return np.asarray(values, dtype=np.float64)[fleet.kind]


def _starts(counts: Ints) -> Ints:
    return (np.cumsum(counts) - counts).astype(np.int32)
