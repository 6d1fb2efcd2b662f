"""NVLS: the NVSwitch itself reduces and multicasts (NVLink SHARP, Hopper and later).

Every GPU is in charge of S/n: it requests the sum of that part from the switch (which reads it from all GPUs: S leaves
each port in all) and stores the result to all at once (S/n leaves its port, and the switch copies it). A port carries
S(1 + 1/n) each way instead of a ring's 2S(n-1)/n, so bus bandwidth is 2(n-1)/(n+1) of the port's rate: no more than a
ring's with 4 GPUs, 1.56 times as much with 8.
"""

import numpy as np

from sandtable.engine.network.algorithm import Algorithm
from sandtable.engine.network.collective_call import CollectiveCall
from sandtable.engine.network.edges import tree_steps, upwards
from sandtable.engine.network.flows import Flow, Steps, make_pattern
from sandtable.engine.network.nccl_constants import Generation
from sandtable.engine.network.transfer import LinkPattern

__all__ = ["Nvls", "NvlsTree"]


class Nvls(Algorithm):
    """All-reduce inside one node's switch."""

    name = "nvls"
    speeds = "nvls"
    ops = frozenset({"all_reduce", "barrier"})

    def is_possible(self, call: CollectiveCall) -> bool:
        return super().is_possible(call) and _has_switches(call) and not call.spans_nodes

    def pattern(self, call: CollectiveCall, generation: Generation) -> LinkPattern:
        flow = _through_switch(call)
        return make_pattern(call.topology, [[flow]], Steps(num_local=0.0), slowest=_switch_bound(flow, generation))

    def num_channels(self, generation: Generation) -> int:
        return generation.num_nvls_channels


class NvlsTree(Nvls):
    """The switch within nodes, double binary trees between them."""

    name = "nvls-tree"
    speeds = "nvls-tree"

    def is_possible(self, call: CollectiveCall) -> bool:
        return Algorithm.is_possible(self, call) and _has_switches(call) and call.spans_nodes

    def pattern(self, call: CollectiveCall, generation: Generation) -> LinkPattern:
        up, local = upwards(call), _through_switch(call)
        steps = tree_steps(call, up, num_local=0.0)
        phases = [[local, up, up.reversed()]]
        return make_pattern(call.topology, phases, steps, slowest=_switch_bound(local, generation))


def _has_switches(call: CollectiveCall) -> bool:
    """Return whether every member shares a reducing switch with at least one other."""
    return all(kind.scale_up.nvls for kind in call.kinds) and int(call.layout.run_length.min()) > 1


def _through_switch(call: CollectiveCall) -> Flow:
    """Return what enters and leaves each port, as if sent to the neighbour."""
    layout = call.layout
    weight = 1.0 + 1.0 / layout.run_length[layout.run]
    return Flow.of(call.topology, layout.ranks, layout.ranks[layout.next_local()], weight)


def _switch_bound(flow: Flow, generation: Generation) -> float:
    """Return the seconds per byte at the rate at which the switch reduces."""
    rate = flow.topology.route_bandwidth_bytes_per_s(flow.routes) * generation.nvls_share
    return float(np.max(np.asarray(flow.weight) / rate))
