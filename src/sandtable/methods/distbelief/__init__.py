"""DistBelief's two methods: asynchronous descent on parameter servers, and L-BFGS whose vectors live there.

Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012.
"""

from sandtable.methods.distbelief.coordinating import CoordinatorReport, coordinate
from sandtable.methods.distbelief.downpour import Downpour, DownpourCounters
from sandtable.methods.distbelief.holding import HolderReport, hold
from sandtable.methods.distbelief.lbfgs import LBFGS, Ending, Progress
from sandtable.methods.distbelief.line_search import LineSearch
from sandtable.methods.distbelief.settings import Part, Sandblaster
from sandtable.methods.distbelief.working import ReplicaReport, work

__all__ = [
    "LBFGS",
    "CoordinatorReport",
    "Downpour",
    "DownpourCounters",
    "Ending",
    "HolderReport",
    "LineSearch",
    "Part",
    "Progress",
    "ReplicaReport",
    "Sandblaster",
    "coordinate",
    "hold",
    "work",
]
