"""The hosts and links that a lab builds, given directly or taken from a cluster."""

import math
from dataclasses import dataclass

from sandtable.cluster import Cluster
from sandtable.errors import LabError

__all__ = ["LabHost", "LabPlan", "LabSite", "plan_for"]

MAX_HOSTS = 200
"""Fits in one /24 of addresses; a machine runs out of processors and memory long before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabHost:
    """One host. Its link carries `bandwidth_bytes_per_s` each way, counted as Ethernet frames; 0: unlimited.

    `cores` is the share of this machine's processors it may use (0: unlimited). A share keeps the host's speed
    constant, whether the other hosts are busy or idle.
    """

    name: str
    bandwidth_bytes_per_s: float = 0.0
    site: str = ""
    cores: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LabSite:
    """One site. Its hosts share one link of `bandwidth_bytes_per_s` to the other sites; 0: unlimited."""

    name: str
    bandwidth_bytes_per_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LabPlan:
    """All hosts and sites of a lab. Without sites, every host is connected to one switch."""

    hosts: tuple[LabHost, ...]
    sites: tuple[LabSite, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= len(self.hosts) <= MAX_HOSTS:
            raise LabError(f"a lab must have 1 to {MAX_HOSTS} hosts, but got {len(self.hosts)}; change their number")
        names = [host.name for host in self.hosts]
        if len(set(names)) < len(names):
            raise LabError(f"hosts of a lab must have different names, but got {', '.join(names)}; rename some")
        if bad := next((name for name in names if not _is_host_name(name)), None):
            raise LabError(f"a host name must be letters, digits and hyphens, at most 60, but got '{bad}'; try host0")
        known = {site.name for site in self.sites} | ({""} if not self.sites else set())
        if lost := next((host for host in self.hosts if host.site not in known), None):
            raise LabError(
                f"host {lost.name} must be at a site of the plan, but '{lost.site}' is not in {sorted(known)}; "
                "add the site or move the host"
            )
        links = [(host.name, host.bandwidth_bytes_per_s) for host in self.hosts]
        links += [(site.name, site.bandwidth_bytes_per_s) for site in self.sites]
        for name, rate in links:
            if not 0 <= rate < math.inf:
                raise LabError(
                    f"bandwidth of {name} must be 0 (unlimited) or more, but got {rate}; give it in bytes per second"
                )

    @classmethod
    def uniform(cls, num_hosts: int, *, bandwidth_bytes_per_s: float, cores: float = 0.0) -> "LabPlan":
        """Plan `num_hosts` equal hosts on one switch."""
        return cls.of_bandwidths([bandwidth_bytes_per_s] * num_hosts, cores=cores)

    @classmethod
    def of_bandwidths(cls, bandwidths_bytes_per_s: list[float], *, cores: float = 0.0) -> "LabPlan":
        """Plan one host per bandwidth on one switch, named host0, host1, ..."""
        return cls(
            hosts=tuple(
                LabHost(name=f"host{index}", bandwidth_bytes_per_s=bandwidth, cores=cores)
                for index, bandwidth in enumerate(bandwidths_bytes_per_s)
            )
        )


def plan_for(cluster: Cluster, *, cores: float = 0.0) -> LabPlan:
    """Plan one host per node of `cluster`, named host0, host1, ..., each with `cores` of this machine (0: unlimited).

    A node's adapters become one link. Latencies are left out, since the kernel cannot delay packets without netem, and
    so are switches with full uplinks.
    """
    if cluster.num_nodes > MAX_HOSTS:
        raise LabError(
            f"a lab must have 1 to {MAX_HOSTS} hosts, but '{cluster.name}' has {cluster.num_nodes} nodes; use fewer"
        )
    if any(tier.oversubscription > 1 or tier.uplink_bytes_per_s for tier in cluster.fabric.tiers):
        raise LabError(
            f"the switches of '{cluster.name}' must have full uplinks in a lab, but some are oversubscribed; "
            "describe the slow uplink as [[fabric.sites]]"
        )
    site_names = [site.name for site in cluster.fabric.sites for _ in range(site.num_nodes)]
    nodes = [group.kind for group in cluster.groups for _ in range(group.num_nodes)]
    return LabPlan(
        hosts=tuple(
            LabHost(
                name=f"host{index}",
                bandwidth_bytes_per_s=node.nics.bandwidth_bytes_per_s * node.nics.count,
                site=site,
                cores=cores,
            )
            for index, (node, site) in enumerate(zip(nodes, site_names or [""] * len(nodes), strict=True))
        ),
        sites=tuple(
            LabSite(name=site.name, bandwidth_bytes_per_s=site.bandwidth_bytes_per_s) for site in cluster.fabric.sites
        ),
    )


def _is_host_name(name: str) -> bool:
    return 0 < len(name) <= 60 and name.replace("-", "").isalnum() and name.isascii() and name[0] != "-"
