"""Ring: every member passes pieces to the next one, so each link between neighbours carries nearly the same.

All-reduce sends 2(n-1) pieces of S/n: T = steps x latency + 2(n-1)/n x S/B; all-gather and reduce-scatter half of that
(Patarasuk and Yuan 2009). Between nodes there are as many rings as every node has members, each leaving and entering
nodes by an adapter of its own; within a node a ring passes all members but the way back to the first. Broadcast and
reduce are a ring cut open at the root, in many small pieces.
"""

from dataclasses import replace

import numpy as np

from sandtable.engine.network.algorithm import Algorithm
from sandtable.engine.network.flows import Flow, Steps, draw
from sandtable.engine.network.job import Job
from sandtable.engine.network.layout import Layout
from sandtable.engine.network.mesh import ring_share
from sandtable.engine.network.nccl_constants import Generation
from sandtable.engine.network.transfer import Floats, Ints, Pattern

__all__ = ["Ring", "local_flow", "mesh_bound", "remote_edges"]

_PASSES = {"all_reduce": 2.0, "barrier": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}


class Ring(Algorithm):
    """One piece a member for all-reduce, all-gather and reduce-scatter; a chain from or to the root otherwise."""

    name = "ring"
    speeds = "ring"
    ops = frozenset({"all_reduce", "barrier", "all_gather", "reduce_scatter", "broadcast", "reduce"})

    def pattern(self, job: Job, generation: Generation) -> Pattern:
        layout, size = job.layout, job.size
        passes = _PASSES.get(job.op, 0.0)
        per_edge = passes * (size - 1) / size if passes else 1.0
        local = local_flow(job, per_edge)
        src, dst = remote_edges(layout)
        weight = per_edge * layout.rail_weight(src)
        remote = Flow.of(job.topology, layout.ranks[src], layout.ranks[dst], weight)
        steps = _steps(job, remote, group=layout.group[src], num_passes=passes or 1.0)
        slowest = mesh_bound(job, per_edge)
        if not passes:
            local, remote = _cut_open(job, local), _cut_open(job, remote)
        pattern = draw(job.topology, [[local, remote]], steps, slowest=slowest)
        if passes == 2.0 and job.has_nvlink and not job.spans_nodes:
            return _with_copies(pattern, job, generation)
        return pattern


def local_flow(job: Job, per_edge: float) -> Flow:
    """Neighbours within a node: all round if the group has no other node, else all but the way back to the first."""
    layout = job.layout
    length = layout.run_length[layout.run]
    alone = layout.num_nodes[layout.group] == 1
    weight = np.where(alone, 1.0, (length - 1) / length) * per_edge
    members = np.flatnonzero(length > 1)
    after = layout.next_local()[members]
    return Flow.of(job.topology, layout.ranks[members], layout.ranks[after], weight[members])


def remote_edges(layout: Layout) -> tuple[Ints, Ints]:
    """From each rail of a node to the same rail of the group's next node, as members of `layout`."""
    rails = layout.rails()
    group = layout.group[rails]
    rails = rails[layout.num_nodes[group] > 1]
    group = layout.group[rails]
    first, count = layout.first_run[group], layout.num_nodes[group]
    after = first + (layout.run[rails] - first + 1) % count
    return rails, layout.on_run(rails, after)


def mesh_bound(job: Job, per_edge: float) -> float:
    """Seconds for one byte of the message at the rate that rings through the nodes' mesh of links can have."""
    layout, topology = job.layout, job.topology
    if not any(kind.scale_up.mesh for kind in job.kinds):
        return 0.0
    slowest = 0.0
    seen: set[tuple[int, ...]] = set()
    for start, length in zip(layout.run_start.tolist(), layout.run_length.tolist(), strict=True):
        ranks = layout.ranks[start : start + length]
        kind = int(topology.kind_of_node[topology.node_of[ranks[0]]])
        key = (kind, *topology.slot_of[ranks].tolist())
        if length > 1 and key not in seen:
            seen.add(key)
            share = ring_share(topology.kinds[kind], key[1:])
            port = topology.routes(ranks[:1], ranks[1:2])[0, 0]
            slowest = max(slowest, per_edge / (share * float(topology.bandwidth_bytes_per_s[port])))
    return slowest


def _steps(job: Job, remote: Flow, *, group: Ints, num_passes: float) -> Steps:
    """`num_passes` times round the ring, but for one hop."""
    layout = job.layout
    nodes = layout.max_nodes
    if nodes == 1:
        return Steps(num_local=num_passes * (job.size - 1))
    num_remote = num_passes * (nodes - 1)
    around: Floats = np.bincount(group, weights=remote.delay_ns, minlength=layout.num_groups) / layout.num_rails
    mean = float((around / np.maximum(layout.num_nodes, 1)).max())
    return Steps(num_local=num_passes * (job.size - 1) - num_remote, num_remote=num_remote, wire_ns=mean * num_remote)


def _cut_open(job: Job, flow: Flow) -> Flow:
    """Nothing is sent to the root of a broadcast, nor by the root of a reduce."""
    ends = flow.dst if job.op == "broadcast" else flow.src
    keep = ~np.isin(ends, job.roots)
    assert not isinstance(flow.weight, float)
    return replace(flow, src=flow.src[keep], dst=flow.dst[keep], weight=flow.weight[keep], routes=flow.routes[keep])


def _with_copies(pattern: Pattern, job: Job, generation: Generation) -> Pattern:
    """Slower for few members: copies of one's own count for more beside 2(n-1) steps.

    A full node is the measure, for that is how the achievable rate of its links is known.
    """
    full = min(kind.num_gpus for kind in job.kinds)
    here, there = (1 + generation.extra_steps / (2 * (size - 1)) for size in (job.size, max(full, job.size)))
    return replace(pattern, seconds_per_byte=pattern.seconds_per_byte * here / there)
