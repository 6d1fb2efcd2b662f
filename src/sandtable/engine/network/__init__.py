"""How a collective crosses the wires: which links it fills, for how long, and how many multiprocessors it needs.

`Planner` (or, for a single call, `plan_collective` and `plan_p2p`) turns a call into a `Transfer`.
"""

from sandtable.engine.network.gloo import GlooCosts
from sandtable.engine.network.planner import BACKENDS, Planner, plan_collective, plan_p2p
from sandtable.engine.network.transfer import LinkPattern, Transfer

__all__ = ["BACKENDS", "GlooCosts", "LinkPattern", "Planner", "Transfer", "plan_collective", "plan_p2p"]
