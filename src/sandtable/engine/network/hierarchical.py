"""Hierarchical: reduce-scatter within each node, all-reduce of each part between nodes, all-gather within.

What training scripts build from three calls, and CollNet does inside one. The phases follow each other, so their times
add: 2(k-1)/k x S/B_local + 2(m-1)/m x S/k/B_remote, with k members on each of m nodes. The number of slow steps is
2(m-1) instead of a flat ring's 2(mk-1).
"""

from sandtable.engine.network.algorithm import Algorithm
from sandtable.engine.network.flows import Flow, Steps, draw
from sandtable.engine.network.job import Job
from sandtable.engine.network.nccl_constants import Generation
from sandtable.engine.network.ring import remote_edges
from sandtable.engine.network.transfer import Pattern

__all__ = ["Hierarchical"]


class Hierarchical(Algorithm):
    """Only when asked for: NCCL does not choose it without in-network reduction."""

    name = "hierarchical"
    speeds = "ring"
    ops = frozenset({"all_reduce"})
    is_automatic = False

    def is_possible(self, job: Job) -> bool:
        even = bool((job.layout.run_length == job.layout.max_local).all())
        return super().is_possible(job) and job.spans_nodes and even

    def pattern(self, job: Job, generation: Generation) -> Pattern:
        layout, topology = job.layout, job.topology
        nodes, local = layout.max_nodes, layout.max_local
        src, dst = remote_edges(layout)
        here = Flow.of(topology, layout.ranks, layout.ranks[layout.next_local()], (local - 1) / local)
        weight = 2.0 * (nodes - 1) / nodes / local
        there = Flow.of(topology, layout.ranks[src], layout.ranks[dst], weight)
        num_remote = 2.0 * (nodes - 1)
        steps = Steps(num_local=2.0 * (local - 1), num_remote=num_remote, wire_ns=num_remote * there.longest_delay_ns)
        return draw(topology, [[here], [there], [here]], steps)
