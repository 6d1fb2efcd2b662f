"""Tree: data is reduced up a binary tree of nodes and broadcast down again, in log2(nodes) steps instead of 2 nodes.

NCCL builds two trees, each for half of the data, such that a node with children in one is a leaf in the other (Sanders,
Speck and Träff 2009): all nodes send and receive 2S, as in a ring. Within a node members form a chain.
"""

import numpy as np

from sandtable.engine.network.algorithm import Algorithm
from sandtable.engine.network.collective_call import CollectiveCall
from sandtable.engine.network.edges import mesh_bound, tree_steps, upwards
from sandtable.engine.network.flows import Flow, make_pattern
from sandtable.engine.network.nccl_constants import Generation
from sandtable.engine.network.transfer import LinkPattern

__all__ = ["Tree"]


class Tree(Algorithm):
    """Double binary trees between nodes, chains within."""

    name = "tree"
    speeds = "tree"
    ops = frozenset({"all_reduce", "barrier"})

    def is_possible(self, call: CollectiveCall) -> bool:
        return super().is_possible(call) and call.spans_nodes

    def pattern(self, call: CollectiveCall, generation: Generation) -> LinkPattern:
        layout = call.layout
        up = upwards(call)
        length = layout.run_length[layout.run]
        members = np.flatnonzero(length > 1)
        share = ((length - 1) / length)[members]
        after = layout.next_local()[members]
        chain = Flow.of(call.topology, layout.ranks[members], layout.ranks[after], share)
        steps = tree_steps(call, up, num_local=2.0 * (layout.max_local - 1))
        phases = [[up, up.reversed(), chain, chain.reversed()]]
        return make_pattern(call.topology, phases, steps, slowest=mesh_bound(call, 2.0))
