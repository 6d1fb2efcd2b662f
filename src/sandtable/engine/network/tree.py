"""Tree: data is reduced up a binary tree of nodes and broadcast down again, in log2(nodes) steps instead of 2 nodes.

NCCL builds two trees, each for half of the data, such that a node which has children in one is a leaf in the other
(Sanders, Speck and Träff 2009): all nodes send and receive 2S, like in a ring. Within a node members form a chain.
"""

import numpy as np
import numpy.typing as npt

from sandtable.engine.network.algorithm import Algorithm
from sandtable.engine.network.flows import Flow, Steps, draw
from sandtable.engine.network.job import Job
from sandtable.engine.network.layout import Layout
from sandtable.engine.network.nccl_constants import Generation
from sandtable.engine.network.ring import mesh_bound
from sandtable.engine.network.transfer import Ints, Pattern

__all__ = ["Tree", "tree_steps", "upwards"]


class Tree(Algorithm):
    """Double binary trees between nodes, chains within."""

    name = "tree"
    speeds = "tree"
    ops = frozenset({"all_reduce", "barrier"})

    def is_possible(self, job: Job) -> bool:
        return super().is_possible(job) and job.spans_nodes

    def pattern(self, job: Job, generation: Generation) -> Pattern:
        layout = job.layout
        up = upwards(job)
        length = layout.run_length[layout.run]
        members = np.flatnonzero(length > 1)
        share = ((length - 1) / length)[members]
        after = layout.next_local()[members]
        chain = Flow.of(job.topology, layout.ranks[members], layout.ranks[after], share)
        steps = tree_steps(job, up, num_local=2.0 * (layout.max_local - 1))
        phases = [[up, up.reversed(), chain, chain.reversed()]]
        return draw(job.topology, phases, steps, slowest=mesh_bound(job, 2.0))


def upwards(job: Job) -> Flow:
    """From every node to its parent in both trees, half of the data each, on as many rails as there are."""
    child, parent = _tree_edges(job.layout)
    ranks = job.layout.ranks
    return Flow.of(job.topology, ranks[child], ranks[parent], 0.5 * job.layout.rail_weight(child))


def tree_steps(job: Job, up: Flow, *, num_local: float) -> Steps:
    """Up and down the deeper side of a tree."""
    depth = float(np.floor(np.log2(job.layout.max_nodes)))
    return Steps(num_local=num_local, num_remote=2 * depth, wire_ns=2 * depth * up.longest_delay_ns)


def _tree_edges(layout: Layout) -> tuple[Ints, Ints]:
    """Child and parent members of both trees, one edge a rail."""
    rails = layout.rails()
    rails = rails[layout.num_nodes[layout.group[rails]] > 1]
    first, count = layout.first_run[layout.group[rails]], layout.num_nodes[layout.group[rails]]
    place = layout.run[rails] - first
    children, parents = [], []
    for above in _double_tree(place, count):
        has_parent = above >= 0
        children.append(rails[has_parent])
        parents.append(layout.on_run(rails[has_parent], (first + above)[has_parent]))
    return np.concatenate(children), np.concatenate(parents)


def _double_tree(place: Ints, count: Ints) -> tuple[Ints, Ints]:
    """The parent of each place among `count` in the two trees, -1 for a root.

    The second tree is the first with places shifted by one (odd count) or mirrored (even), which swaps leaves and
    inner places.
    """
    odd = count % 2 == 1
    other = np.where(odd, (place - 1) % count, count - 1 - place)
    above = _binary_tree(other, count)
    second = np.where(odd, (above + 1) % count, count - 1 - above)
    return _binary_tree(place, count), np.where(above < 0, -1, second).astype(np.int32)


def _binary_tree(place: npt.NDArray[np.int32], count: Ints) -> Ints:
    """In-order binary tree: odd places are leaves, a place's lowest one-bit is its height, 0 is the root."""
    bit = place & -place
    above = (place ^ bit) | (bit << 1)
    above = np.where(above >= count, place ^ bit, above)
    return np.where(place == 0, -1, above).astype(np.int32)
