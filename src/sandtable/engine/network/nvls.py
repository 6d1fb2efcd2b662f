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
from sandtable.engine.network.nccl_constants import Generation
from sandtable.engine.network.transfer import Pattern
from sandtable.engine.network.tree import tree_steps, upwards

__all__ = ["Nvls", "NvlsTree"]


class Nvls(Algorithm):
    """All-reduce inside one node's switch."""

    name = "nvls"
    speeds = "nvls"
    ops = frozenset({"all_reduce", "barrier"})

    def is_possible(self, job: Job) -> bool:
        return super().is_possible(job) and _has_switches(job) and not job.spans_nodes

    def pattern(self, job: Job, generation: Generation) -> Pattern:
        flow = _through_switch(job)
        return draw(job.topology, [[flow]], Steps(num_local=0.0), slowest=_switch_bound(flow, generation))

    def num_channels(self, generation: Generation) -> int:
        return generation.num_nvls_channels


class NvlsTree(Nvls):
    """The switch within nodes, double binary trees between them."""

    name = "nvls-tree"
    speeds = "nvls-tree"

    def is_possible(self, job: Job) -> bool:
        return Algorithm.is_possible(self, job) and _has_switches(job) and job.spans_nodes

    def pattern(self, job: Job, generation: Generation) -> Pattern:
        up, local = upwards(job), _through_switch(job)
        steps = tree_steps(job, up, num_local=0.0)
        phases = [[local, up, up.reversed()]]
        return draw(job.topology, phases, steps, slowest=_switch_bound(local, generation))


def _has_switches(job: Job) -> bool:
    """Whether every member shares a reducing switch with at least one other."""
    return all(kind.scale_up.nvls for kind in job.kinds) and int(job.layout.run_length.min()) > 1


def _through_switch(job: Job) -> Flow:
    """What enters and leaves each port, drawn as if sent to the neighbour."""
    layout = job.layout
    weight = 1.0 + 1.0 / layout.run_length[layout.run]
    return Flow.of(job.topology, layout.ranks, layout.ranks[layout.next_local()], weight)


def _switch_bound(flow: Flow, generation: Generation) -> float:
    """Seconds for one byte at the rate at which the switch reduces."""
    rate = flow.topology.route_bandwidth_bytes_per_s(flow.routes) * generation.nvls_share
    return float(np.max(np.asarray(flow.weight) / rate))
