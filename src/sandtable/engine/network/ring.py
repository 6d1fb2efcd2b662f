"""Ring: every member passes pieces to the next one, so each link between neighbours carries nearly the same.

All-reduce sends 2(n-1) pieces of S/n: T = steps x latency + 2(n-1)/n x S/B; all-gather and reduce-scatter half of that
(Patarasuk and Yuan 2009). Between nodes there are as many rings as every node has members, each leaving and entering
nodes by its own adapter; within a node a ring passes all members except the way back to the first. Broadcast and
reduce are a ring cut open at the root, in many small pieces.
"""

from dataclasses import replace

import numpy as np

from sandtable.engine.network.algorithm import Algorithm
from sandtable.engine.network.collective_call import CollectiveCall
from sandtable.engine.network.edges import local_flow, mesh_bound, remote_edges
from sandtable.engine.network.flows import Flow, Steps, make_pattern
from sandtable.engine.network.nccl_constants import Generation
from sandtable.engine.network.transfer import Floats, Ints, LinkPattern

__all__ = ["Ring"]

_PASSES = {"all_reduce": 2.0, "barrier": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}


class Ring(Algorithm):
    """One piece per member for all-reduce, all-gather and reduce-scatter; a chain from or to the root otherwise."""

    name = "ring"
    speeds = "ring"
    ops = frozenset({"all_reduce", "barrier", "all_gather", "reduce_scatter", "broadcast", "reduce"})

    def pattern(self, call: CollectiveCall, generation: Generation) -> LinkPattern:
        layout, size = call.layout, call.size
        passes = _PASSES.get(call.op, 0.0)
        per_edge = passes * (size - 1) / size if passes else 1.0
        local = local_flow(call, per_edge)
        src, dst = remote_edges(layout)
        weight = per_edge * layout.rail_weight(src)
        remote = Flow.of(call.topology, layout.ranks[src], layout.ranks[dst], weight)
        steps = _steps(call, remote, group=layout.group[src], num_passes=passes or 1.0)
        slowest = mesh_bound(call, per_edge)
        if not passes:
            local, remote = _cut_open(call, local), _cut_open(call, remote)
        pattern = make_pattern(call.topology, [[local, remote]], steps, slowest=slowest)
        if passes == 2.0 and call.has_nvlink and not call.spans_nodes:
            return _with_copies(pattern, call, generation)
        return pattern


def _steps(call: CollectiveCall, remote: Flow, *, group: Ints, num_passes: float) -> Steps:
    """Return the steps of `num_passes` rounds, each without its last hop."""
    layout = call.layout
    nodes = layout.max_nodes
    if nodes == 1:
        return Steps(num_local=num_passes * (call.size - 1))
    num_remote = num_passes * (nodes - 1)
    around: Floats = np.bincount(group, weights=remote.delay_ns, minlength=layout.num_groups) / layout.num_rails
    mean = float((around / np.maximum(layout.num_nodes, 1)).max())
    return Steps(num_local=num_passes * (call.size - 1) - num_remote, num_remote=num_remote, wire_ns=mean * num_remote)


def _cut_open(call: CollectiveCall, flow: Flow) -> Flow:
    """Drop what is sent to the root of a broadcast, or by the root of a reduce."""
    ends = flow.dst if call.op == "broadcast" else flow.src
    keep = ~np.isin(ends, call.roots)
    assert not isinstance(flow.weight, float)
    return replace(flow, src=flow.src[keep], dst=flow.dst[keep], weight=flow.weight[keep], routes=flow.routes[keep])


def _with_copies(pattern: LinkPattern, call: CollectiveCall, generation: Generation) -> LinkPattern:
    """Slow the pattern down for few members: local copies count for more beside 2(n-1) steps.

    A full node is the reference, since the achievable rate of its links was measured that way.
    """
    full = min(kind.num_gpus for kind in call.kinds)
    here, there = (1 + generation.extra_steps / (2 * (size - 1)) for size in (call.size, max(full, call.size)))
    return replace(pattern, seconds_per_byte=pattern.seconds_per_byte * here / there)
