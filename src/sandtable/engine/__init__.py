"""HOW LONG IT TAKES: when every rank of a captured run does what, on a given cluster.

    timeline = simulate(trace, cluster)
    timeline.step_ns, timeline.breakdown(0), timeline.link_loads, timeline.spans(0)

Operators get their cost from the device (`compute`), calls from the links (`network`). Ranks whose time must be
equal are folded into one actor (`fold`), and an event clock runs the actors to the end (`clock`).
"""

from sandtable.engine.breakdown import Breakdown
from sandtable.engine.compute.measured import MeasuredRow, MeasuredTable
from sandtable.engine.compute.model import CostModel
from sandtable.engine.network.transfer import Transfer
from sandtable.engine.simulate import simulate
from sandtable.engine.spans import Span
from sandtable.engine.timeline import Actor, LinkLoads, OperatorCounts, Timeline, Transaction
from sandtable.engine.what_if import WhatIf

__all__ = [
    "Actor",
    "Breakdown",
    "CostModel",
    "LinkLoads",
    "MeasuredRow",
    "MeasuredTable",
    "OperatorCounts",
    "Span",
    "Timeline",
    "Transaction",
    "Transfer",
    "WhatIf",
    "simulate",
]
