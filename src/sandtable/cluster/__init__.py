"""WHAT EXISTS: devices, the nodes they sit in, the links between them, and clusters of such nodes.

Think of the quartermaster's list: `load("dgx-a100", nodes=384)` says what would be there if it were booked, and
`Topology` which roads lie between. The list is a catalogue of TOML files, one a device, a machine or a network; a path
ending in `.toml` loads a cluster of the user's own.
"""

from sandtable.cluster.catalogue import device_names, load, load_device, names, network_names
from sandtable.cluster.cluster import Cluster, NodeGroup
from sandtable.cluster.device import Device, Rates
from sandtable.cluster.fabric import Fabric, Site, SwitchTier
from sandtable.cluster.node import Host, Nics, NodeKind, Origin, Price, ScaleUp
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
    "Topology",
    "device_names",
    "load",
    "load_device",
    "names",
    "network_names",
]
