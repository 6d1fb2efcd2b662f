"""Figures: computes a `Summary` from a trace, a cluster and a timeline."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sandtable.cluster import Cluster, Topology
from sandtable.engine.memory import memory_use
from sandtable.engine.timeline import Timeline
from sandtable.engine.what_if import WhatIf
from sandtable.findings import Finding
from sandtable.report.summary import (
    ClassMemory,
    ClusterSummary,
    DeviceSummary,
    Effort,
    LinkOrigin,
    RunCost,
    StepSpread,
    Summary,
    Throughput,
    Timing,
    UserInputs,
)
from sandtable.report.times import break_down
from sandtable.report.traffic import load_tiers, size_transactions
from sandtable.report.work import StepWork, count_work, measure_efficiency, peak_of
from sandtable.trace import Trace, format_ranks, progress_of, summarise_trace
from sandtable.units import NS_PER_S

__all__ = ["SimulationEffort", "summarise"]

_S_PER_HOUR = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationEffort:
    """What computing the time of a captured run took."""

    wall_seconds: float = 0.0
    core_seconds: float = 0.0


def summarise(
    trace: Trace,
    timeline: Timeline | None,
    cluster: Cluster,
    *,
    inputs: UserInputs | None = None,
    changes: WhatIf | None = None,
    effort: SimulationEffort | None = None,
    findings: Sequence[Finding] = (),
    silenced: Sequence[Finding] = (),
) -> Summary:
    """Return the figures of a run on `cluster`; those of `Summary.timing` only if it has a timeline."""
    inputs, effort = inputs or UserInputs(), effort or SimulationEffort()
    if timeline is not None:
        topology = timeline.topology
    else:
        topology = Topology(cluster, ranks_per_node=trace.ranks_per_node, num_ranks=trace.world_size)
    step = None if timeline is None else timeline.step_number
    work = count_work(trace, step=step)
    timing = None if timeline is None else _timing(timeline, work, inputs)
    return Summary(
        command=trace.command,
        world_size=trace.world_size,
        cluster=_cluster(
            trace, topology, dtype=work.dtype, requested=inputs.cluster or str(cluster.source_file or cluster.name)
        ),
        timing=timing,
        memory=_memory(trace),
        effort=_effort(trace, effort, timing),
        capture=summarise_trace(trace, step=step),
        inputs=inputs,
        what_if=changes or WhatIf(),
        findings=tuple(findings),
        silenced=tuple(silenced),
        progress=progress_of(trace),
    )


def _timing(timeline: Timeline, work: StepWork, inputs: UserInputs) -> Timing:
    seconds = timeline.step_ns / NS_PER_S
    return Timing(
        step_seconds=seconds,
        steps=_spread(timeline),
        breakdown=break_down(timeline),
        efficiency=measure_efficiency(work, timeline.topology, step_seconds=seconds),
        throughput=_throughput(inputs, seconds, timeline.trace.world_size),
        tiers=load_tiers(timeline),
        transactions=size_transactions(timeline),
        cost=_cost(timeline, seconds, inputs.usd_per_gpu_hour),
        basis=dict(timeline.basis),
    )


def _spread(timeline: Timeline) -> StepSpread:
    steps = timeline.steps
    durations = steps.durations_ns
    return StepSpread(
        described=timeline.step_number,
        num_timed=len(durations),
        median_seconds=steps.median_ns / NS_PER_S,
        fastest_seconds=int(durations.min()) / NS_PER_S,
        slowest_seconds=int(durations.max()) / NS_PER_S,
        slowest=steps.first_number + int(durations.argmax()),
    )


def _memory(trace: Trace) -> tuple[ClassMemory, ...]:
    return tuple(
        ClassMemory(
            representative=rank_class.representative,
            num_ranks=rank_class.size,
            ranks=format_ranks(rank_class.ranks),
            use=memory_use(trace.rank(rank_class.representative)),
        )
        for rank_class in trace.classes
    )


def _cluster(trace: Trace, topology: Topology, *, dtype: str, requested: str) -> ClusterSummary:
    cluster = topology.cluster
    counts = np.bincount(topology.device_index, minlength=len(topology.devices)).tolist()
    return ClusterSummary(
        name=cluster.name,
        asked=requested,
        title=cluster.title,
        num_nodes=cluster.num_nodes,
        ranks_per_node=trace.ranks_per_node,
        devices=tuple(
            DeviceSummary(
                name=device.name,
                num_ranks=count,
                memory_bytes=device.memory_bytes,
                peak_flops_per_s=peak_of(device, dtype),
            )
            for count, device in zip(counts, topology.devices, strict=True)
        ),
        links=_link_origins(cluster),
    )


def _link_origins(cluster: Cluster) -> tuple[LinkOrigin, ...]:
    """Return where the numbers of each kind of link come from, each once."""
    parts = []
    for group in cluster.groups:
        scale_up, nics = group.kind.scale_up, group.kind.nics
        parts += [
            (scale_up.kind, scale_up.bandwidth_bytes_per_s, scale_up.origin),
            ("nic", nics.bandwidth_bytes_per_s, nics.origin),
        ]
    parts += [("switch", tier.uplink_bytes_per_s, tier.origin) for tier in cluster.fabric.tiers]
    parts += [("site", site.bandwidth_bytes_per_s, site.origin) for site in cluster.fabric.sites]
    origins = (
        LinkOrigin(kind=kind, bandwidth_bytes_per_s=bandwidth or None, source=origin.source, status=origin.status)
        for kind, bandwidth, origin in parts
    )
    return tuple(dict.fromkeys(origins))


def _throughput(inputs: UserInputs, seconds: float, world_size: int) -> Throughput | None:
    tokens, samples = inputs.tokens_per_step, inputs.samples_per_step
    if not seconds or (tokens is None and samples is None):
        return None
    return Throughput(
        tokens_per_step=tokens,
        tokens_per_s=tokens / seconds if tokens is not None else None,
        tokens_per_s_per_gpu=tokens / seconds / world_size if tokens is not None else None,
        samples_per_step=samples,
        samples_per_s=samples / seconds if samples is not None else None,
    )


def _cost(timeline: Timeline, seconds: float, given_price: float | None) -> RunCost:
    """Return the cost of a step. Whole nodes are paid for, so a node's price is divided among its ranks."""
    hours = seconds * timeline.trace.world_size / _S_PER_HOUR
    price, source = (given_price, "given") if given_price is not None else _catalogue_price(timeline.topology)
    return RunCost(
        gpu_hours_per_step=hours,
        gpu_hours_per_1000_steps=1000 * hours,
        usd_per_gpu_hour=price,
        usd_per_step=None if price is None else price * hours,
        usd_per_1000_steps=None if price is None else 1000 * price * hours,
        price_source=source,
    )


def _catalogue_price(topology: Topology) -> tuple[float | None, str]:
    prices = [topology.cluster.kind_of(int(node)).price for node in np.unique(topology.node_of)]
    known = [price for price in prices if price is not None]
    if not known or len(known) < len(prices):
        return None, ""
    sources = dict.fromkeys(price.origin.source for price in known)
    return sum(price.usd_per_node_hour for price in known) / topology.num_ranks, "; ".join(sources)


def _effort(trace: Trace, simulation: SimulationEffort, timing: Timing | None) -> Effort:
    core_seconds = trace.core_seconds + simulation.core_seconds
    gpu_seconds = timing.step_seconds * trace.world_size if timing else 0.0
    return Effort(
        capture_wall_seconds=trace.wall_seconds,
        capture_core_seconds=trace.core_seconds,
        simulation_wall_seconds=simulation.wall_seconds,
        simulation_core_seconds=simulation.core_seconds,
        peak_rss_bytes=trace.peak_rss_bytes,
        gpu_seconds_per_core_second=gpu_seconds / core_seconds if timing and core_seconds else None,
    )
