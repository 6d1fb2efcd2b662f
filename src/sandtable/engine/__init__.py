"""HOW LONG IT TAKES: when every rank of a captured run does what, on a given cluster.

    timeline = simulate(trace, cluster)
    timeline.step_ns, timeline.breakdown(0), timeline.link_loads, timeline.spans(0)

Operators get their cost from the device (`compute`), calls from the links they cross (`network`); ranks whose time must
be equal are folded into one actor (`fold`), and an event clock runs the actors to the end (`clock`).
"""

from sandtable.engine.breakdown import Breakdown
from sandtable.engine.compute import CostModel, MeasuredTable
from sandtable.engine.network import Transfer
from sandtable.engine.simulate import simulate
from sandtable.engine.spans import Span
from sandtable.engine.timeline import Actor, LinkLoads, OperatorCounts, Timeline, Transaction
from sandtable.engine.what_if import WhatIf

__all__ = [
    "Actor",
    "Breakdown",
    "CostModel",
    "LinkLoads",
    "MeasuredTable",
    "OperatorCounts",
    "Span",
    "Timeline",
    "Transaction",
    "Transfer",
    "WhatIf",
    "simulate",
]
