"""What joins nodes: tiers of switches, rails, and data centres connected by slow links.

Picture roads: every node's street ends at a leaf switch, spines join leaves, and a core joins spines. A road upwards
that is narrower than all the streets below it together is *oversubscribed*.
"""

from dataclasses import dataclass

from sandtable.cluster.device import Origin

__all__ = ["Fabric", "Site", "SwitchTier"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchTier:
    """Equal switches, each joining `below` nodes or switches of the tier below (0: all of them).

    A switch's uplink is `uplink_bytes_per_s`, or if that is 0 the sum of its nodes' adapters divided by
    `oversubscription`. The top tier has no uplinks. `latency_ns` is the one-way cost of going up and down again.
    """

    below: int
    oversubscription: float
    uplink_bytes_per_s: float
    latency_ns: int
    efficiency: float
    origin: Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A data centre: the next `num_nodes` nodes, and its nominal link to the other sites in each direction."""

    name: str
    num_nodes: int
    bandwidth_bytes_per_s: float
    latency_ns: int
    efficiency: float
    origin: Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The network between nodes. Without tiers it is one switch that is never full.

    With `rails`, adapter k of every node is on leaf switch k of its pod.
    """

    tiers: tuple[SwitchTier, ...]
    rails: bool
    sites: tuple[Site, ...]
    origin: Origin

    @property
    def capacity(self) -> int:
        """The nodes of one site that the tiers can join; 0: any number."""
        product = 1
        for tier in self.tiers:
            product *= tier.below
        return product if self.tiers else 0
