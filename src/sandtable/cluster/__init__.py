"""WHAT EXISTS: devices, the nodes they sit in, the links between them, and clusters of such nodes.

Think of a quartermaster's list: `load("dgx-a100", nodes=384)` returns what you would get by booking it, and
`Topology` the roads between. The list is a catalogue of TOML files, one per device, machine or network; a path that
ends in `.toml` loads a cluster of the user's own.
"""

from sandtable.cluster.catalogue import device_names, load, load_device, names, network_names
from sandtable.cluster.cluster import Cluster, NodeGroup
from sandtable.cluster.description import (
    TierDescription,
    TopologyBranch,
    TopologyDescription,
    ValueRange,
    describe_topology,
)
from sandtable.cluster.device import Device, Origin, Rates
from sandtable.cluster.fabric import Fabric, Site, SwitchTier
from sandtable.cluster.node import Host, Nics, NodeKind, Price, ScaleUp
from sandtable.cluster.topology import Tier, Topology

__all__ = [
    "Cluster",
    "Device",
    "Fabric",
    "Host",
    "Nics",
    "NodeGroup",
    "NodeKind",
    "Origin",
    "Price",
    "Rates",
    "ScaleUp",
    "Site",
    "SwitchTier",
    "Tier",
    "TierDescription",
    "Topology",
    "TopologyBranch",
    "TopologyDescription",
    "ValueRange",
    "describe_topology",
    "device_names",
    "load",
    "load_device",
    "names",
    "network_names",
]
