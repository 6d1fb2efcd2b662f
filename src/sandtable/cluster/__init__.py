"""WHAT EXISTS: devices, the nodes they sit in, and clusters of such nodes.

Think of the quartermaster's list: `load("dgx-a100", nodes=384)` says what would be there if it were booked. The list is
a catalogue of TOML files, one a device and one a machine; a path ending in `.toml` loads a machine of the user's own.
"""

from sandtable.cluster.catalogue import device_names, load, load_device, names
from sandtable.cluster.cluster import Cluster, Node
from sandtable.cluster.device import Device, Rates

__all__ = ["Cluster", "Device", "Node", "Rates", "device_names", "load", "load_device", "names"]
