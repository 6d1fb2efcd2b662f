"""Hierarchical: reduce-scatter within each node, all-reduce of each part between nodes, all-gather within.

Training scripts build it from three calls; CollNet does it inside one. The phases follow each other, so their times
add: 2(k-1)/k x S/B_local + 2(m-1)/m x S/k/B_remote, with k members on each of m nodes. There are 2(m-1) slow steps
instead of a flat ring's 2(mk-1).
"""

from sandtable.engine.network.algorithm import Algorithm
from sandtable.engine.network.collective_call import CollectiveCall
from sandtable.engine.network.edges import remote_edges
from sandtable.engine.network.flows import Flow, Steps, make_pattern
from sandtable.engine.network.nccl_constants import Generation
from sandtable.engine.network.transfer import LinkPattern

__all__ = ["HierarchicalAllReduce"]


class HierarchicalAllReduce(Algorithm):
    """Used only by name: NCCL does not choose it without in-network reduction."""

    name = "hierarchical"
    speeds = "ring"
    ops = frozenset({"all_reduce"})
    is_automatic = False

    def is_possible(self, call: CollectiveCall) -> bool:
        even = bool((call.layout.run_length == call.layout.max_local).all())
        return super().is_possible(call) and call.spans_nodes and even

    def pattern(self, call: CollectiveCall, generation: Generation) -> LinkPattern:
        layout, topology = call.layout, call.topology
        nodes, local = layout.max_nodes, layout.max_local
        src, dst = remote_edges(layout)
        here = Flow.of(topology, layout.ranks, layout.ranks[layout.next_local()], (local - 1) / local)
        weight = 2.0 * (nodes - 1) / nodes / local
        there = Flow.of(topology, layout.ranks[src], layout.ranks[dst], weight)
        num_remote = 2.0 * (nodes - 1)
        steps = Steps(num_local=2.0 * (local - 1), num_remote=num_remote, wire_ns=num_remote * there.longest_delay_ns)
        return make_pattern(topology, [[here], [there], [here]], steps)
