"""A CLUSTER ON ONE MACHINE: hosts as network namespaces, cables as veth pairs, switches as bridges, real sockets.

Think of a model railway: the trains are small, but they really run, and they really wait for each other at the points.
`Lab(plan).run(["torchrun", "train.py"])` runs one torchrun a host over links no faster than the plan says, counts the
bytes on every interface, and leaves nothing behind.
"""

from sandtable.lab.counters import Traffic
from sandtable.lab.lab import HostResult, Lab, LabResult
from sandtable.lab.plan import Host, Plan, Site
from sandtable.lab.requirements import missing

__all__ = ["Host", "HostResult", "Lab", "LabResult", "Plan", "Site", "Traffic", "missing"]
