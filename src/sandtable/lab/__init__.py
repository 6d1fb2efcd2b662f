"""A CLUSTER ON ONE MACHINE: hosts as network namespaces, cables as veth pairs, switches as bridges, real sockets.

Think of a model railway: the trains are small, but they really run, and they really wait for each other at the points.
`Lab(cluster).run(["torchrun", "train.py"])` runs one torchrun a host over links no faster than the cluster's, counts
the bytes on every interface, and leaves nothing behind. `calibrate` measures what such a host and such links do.
"""

from sandtable.lab.calibration import Calibration, LinkRates, OperatorTime, calibrate
from sandtable.lab.cluster_plan import plan_for
from sandtable.lab.counters import Traffic
from sandtable.lab.lab import HostResult, Lab, LabResult
from sandtable.lab.machine_file import machine_text
from sandtable.lab.plan import Host, Plan, Site
from sandtable.lab.requirements import missing

__all__ = [
    "Calibration",
    "Host",
    "HostResult",
    "Lab",
    "LabResult",
    "LinkRates",
    "OperatorTime",
    "Plan",
    "Site",
    "Traffic",
    "calibrate",
    "machine_text",
    "missing",
    "plan_for",
]
