"""A cluster as a plan of the lab: one host a node, its adapters as one cable, and its sites."""

from sandtable.cluster import Cluster
from sandtable.errors import LabError
from sandtable.lab.plan import MAX_HOSTS, Host, Plan, Site

__all__ = ["plan_for"]


def plan_for(cluster: Cluster, *, cores: float = 0.0) -> Plan:
    """Hosts host0, host1, ... for the nodes of `cluster`, each with `cores` of this machine (0: no limit).

    Latencies are left out, since the kernel has no delay line without netem; so are switches that are never full.
    """
    if cluster.num_nodes > MAX_HOSTS:
        raise LabError(
            f"a lab must have 1 to {MAX_HOSTS} hosts, but '{cluster.name}' has {cluster.num_nodes} nodes; take fewer"
        )
    if any(tier.oversubscription > 1 or tier.uplink_bytes_per_s for tier in cluster.fabric.tiers):
        raise LabError(
            f"the switches of '{cluster.name}' must have full uplinks in a lab, but some are oversubscribed; "
            "describe the slow uplink as [[fabric.sites]]"
        )
    site_of = [site.name for site in cluster.fabric.sites for _ in range(site.num_nodes)] or [""] * cluster.num_nodes
    kinds = [group.kind for group in cluster.groups for _ in range(group.num_nodes)]
    return Plan(
        hosts=tuple(
            Host(
                name=f"host{index}",
                bandwidth_bytes_per_s=kind.nics.bandwidth_bytes_per_s * kind.nics.count,
                site=site,
                cores=cores,
            )
            for index, (kind, site) in enumerate(zip(kinds, site_of, strict=True))
        ),
        sites=tuple(
            Site(name=site.name, bandwidth_bytes_per_s=site.bandwidth_bytes_per_s) for site in cluster.fabric.sites
        ),
    )
