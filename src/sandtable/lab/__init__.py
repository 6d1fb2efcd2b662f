"""A CLUSTER ON ONE MACHINE: hosts as network namespaces, cables as veth pairs, switches as bridges, real sockets.

Think of a model railway: the trains are small, but they really run, and they really wait for each other at the points.
`Lab(cluster).run(["torchrun", "train.py"])` runs one torchrun per host over links no faster than the cluster's, counts
the bytes on every interface, and leaves nothing behind. `calibrate` measures what these hosts and links achieve.
"""

from sandtable.lab.calibration import Calibration, HostCosts, LinkRates, MeasuredDevice, OperatorTime, calibrate
from sandtable.lab.iproute import HostTraffic
from sandtable.lab.lab import HostResult, Lab, LabResult
from sandtable.lab.machine_file import calibrate_to_file, machine_text
from sandtable.lab.plan import LabHost, LabPlan, LabSite, plan_for
from sandtable.lab.requirements import missing

__all__ = [
    "Calibration",
    "HostCosts",
    "HostResult",
    "HostTraffic",
    "Lab",
    "LabHost",
    "LabPlan",
    "LabResult",
    "LabSite",
    "LinkRates",
    "MeasuredDevice",
    "OperatorTime",
    "calibrate",
    "calibrate_to_file",
    "machine_text",
    "missing",
    "plan_for",
]
