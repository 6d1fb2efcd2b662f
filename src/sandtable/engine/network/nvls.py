"""NVLS: the NVSwitch itself adds up and multicasts (NVLink SHARP, Hopper and later).

Every GPU is in charge of S/n: it asks the switch for the sum of that part (the switch reads it from all GPUs: S leaves
each port in all) and stores the result to all at once (S/n leaves its port, the switch copies it). A port carries
S(1 + 1/n) each way instead of a ring's 2S(n-1)/n, so bus bandwidth is 2(n-1)/(n+1) of the port's rate: no more than
a ring's with 4 GPUs, 1.56 times with 8.
"""

import numpy as np

from sandtable.engine.network.algorithm import Algorithm
from sandtable.engine.network.flows import Flow, Steps, draw
from sandtable.engine.network.job import Job
from sandtable.engine.network.layout import Layout
from sandtable.engine.network.nccl_constants import Generation
from sandtable.engine.network.transfer import Pattern
from sandtable.engine.network.tree import tree_edges, tree_steps

__all__ = ["Nvls", "NvlsTree"]


class Nvls(Algorithm):
    """All-reduce inside one node's switch."""

    name = "nvls"
    speeds = "nvls"
    ops = frozenset({"all_reduce", "barrier"})

    def is_possible(self, job: Job) -> bool:
        return super().is_possible(job) and _has_switches(job) and not job.spans_nodes

    def pattern(self, job: Job, generation: Generation) -> Pattern:
        flow = _through_switch(job.layout)
        bound = _switch_bound(job, flow, generation)
        return draw(job.topology, [[flow]], Steps(num_local=0.0), slowest=bound)

    def num_channels(self, generation: Generation) -> int:
        return generation.num_nvls_channels


class NvlsTree(Nvls):
    """The switch within nodes, double binary trees between them."""

    name = "nvls-tree"
    speeds = "nvls-tree"

    def is_possible(self, job: Job) -> bool:
        return Algorithm.is_possible(self, job) and _has_switches(job) and job.spans_nodes

    def pattern(self, job: Job, generation: Generation) -> Pattern:
        layout = job.layout
        child, parent = tree_edges(layout)
        half = 0.5 * layout.rail_weight(child)
        up = Flow(src=layout.ranks[child], dst=layout.ranks[parent], weight=half)
        down = Flow(src=up.dst, dst=up.src, weight=half)
        local = _through_switch(layout)
        steps = tree_steps(job, child, parent, num_local=0.0)
        return draw(job.topology, [[local, up, down]], steps, slowest=_switch_bound(job, local, generation))


def _has_switches(job: Job) -> bool:
    """Whether every member shares a reducing switch with at least one other."""
    return all(kind.scale_up.nvls for kind in job.kinds) and int(job.layout.run_length.min()) > 1


def _through_switch(layout: Layout) -> Flow:
    """What enters and leaves each port, drawn as if sent to the neighbour."""
    weight = 1.0 + 1.0 / layout.run_length[layout.run]
    return Flow(src=layout.ranks, dst=layout.ranks[layout.next_local()], weight=weight)


def _switch_bound(job: Job, flow: Flow, generation: Generation) -> float:
    """Seconds for one byte at the rate at which the switch reduces."""
    port = job.topology.routes(flow.src, flow.dst)[:, 0]
    rate = job.topology.bandwidth_bytes_per_s[port] * generation.nvls_share
    return float(np.max(np.asarray(flow.weight) / rate))
