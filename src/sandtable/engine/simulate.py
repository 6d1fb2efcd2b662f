"""Simulate: compute when everything happens, from what each rank did and the cluster it runs on."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from sandtable.cluster.cluster import Cluster
from sandtable.cluster.device import Device
from sandtable.cluster.topology import Topology
from sandtable.engine.clock import ActorSpeed, run_clock
from sandtable.engine.compute.host_work import HostRates
from sandtable.engine.compute.measured import MeasuredTable
from sandtable.engine.compute.model import CostModel
from sandtable.engine.fold import Fold, fold
from sandtable.engine.network.planner import Planner
from sandtable.engine.operator_table import OperatorTable
from sandtable.engine.operators import price_operators
from sandtable.engine.program import Program, compile_program
from sandtable.engine.stalls import explain_stall
from sandtable.engine.timeline import Timeline
from sandtable.engine.what_if import WhatIf
from sandtable.engine.wiring import wire
from sandtable.errors import SimulationError, WhatIfError
from sandtable.findings import Finding, Severity
from sandtable.trace.trace import Trace

__all__ = ["simulate"]


def simulate(
    trace: Trace,
    cluster: Cluster,
    *,
    what_if: WhatIf | None = None,
    measured: MeasuredTable | None = None,
    folding: bool = True,
) -> Timeline:
    """Compute when every rank of `trace` does what, on `cluster`.

    `measured` times of operators take precedence over formulas. Without `folding` every rank is a separate actor:
    the same result, slower.
    """
    what_if = what_if or WhatIf()
    topology = Topology(cluster, ranks_per_node=trace.ranks_per_node, num_ranks=trace.world_size)
    if what_if.link_scale:
        topology = topology.scaled(what_if.link_scale)
    tables = [
        price_operators(
            trace,
            CostModel(device, table=measured, host_rates=_host_rates(topology, device, trace.ranks_per_node)),
            host_scale=_host_scale(topology, device),
        )
        for device in topology.devices
    ]
    cache = _ProgramCache(trace, tables)
    slowness = _slowness(topology, what_if)
    colours = _first_colours(trace, topology, slowness, apart=what_if.jitter > 0 or not folding)
    edges = {index: cache.program(index, device=0).edges for index in range(len(trace.classes))}
    folded = fold(trace, topology, edges=edges, first_colour=colours)
    devices = topology.device_index[folded.representatives]
    classes = cache.class_of_rank[folded.representatives]
    programs = [cache.program(int(index), device=int(d)) for index, d in zip(classes, devices, strict=True)]
    speeds = _speeds(folded, slowness, what_if)
    backend = "gloo" if topology.devices[0].vendor == "cpu" else "nccl"
    wiring = wire(folded, programs, Planner(topology, backend=backend))
    times, stuck = run_clock(programs, wiring, speeds)
    if stuck and not all(
        _finished(program, actor_times.end_ns) for program, actor_times in zip(programs, times, strict=True)
    ):
        stall = explain_stall(trace, programs, folded, stuck)
        programs = [_up_to_the_stall(program, own.end_ns) for program, own in zip(programs, times, strict=True)]
        if stall.findings[0].rule != "p2p-mismatch" or not any(len(program.steps) for program in programs):
            raise stall
    return Timeline(
        trace=trace,
        cluster=cluster,
        topology=topology,
        fold=folded,
        programs=tuple(programs),
        times=times,
        wiring=wiring,
        tables=tuple(tables[int(d)] for d in devices),
    )


def _host_scale(topology: Topology, device: Device) -> float:
    """Return how slowly work is issued to such a device: by the slowest host that has one."""
    return max(kind.host.issue_scale for kind in topology.kinds if kind.device == device)


def _host_rates(topology: Topology, device: Device, ranks_per_node: int) -> HostRates:
    """Return what each rank of a node gets when all work on the host: of the slowest host with such a device."""
    hosts = [kind.host for kind in topology.kinds if kind.device == device]
    return HostRates(
        memory_bytes_per_s=min(host.memory_bytes_per_s for host in hosts) / ranks_per_node,
        disk_read_bytes_per_s=min(host.disk_read_bytes_per_s for host in hosts) / ranks_per_node,
        disk_write_bytes_per_s=min(host.disk_write_bytes_per_s for host in hosts) / ranks_per_node,
    )


class _ProgramCache:
    """Programs compiled on demand: one for each class of ranks on each kind of device."""

    def __init__(self, trace: Trace, tables: list[OperatorTable]) -> None:
        self._trace, self._tables = trace, tables
        self._made: dict[tuple[int, int], Program] = {}
        self.class_of_rank = np.full(trace.world_size, -1, dtype=np.int64)
        for index, rank_class in enumerate(trace.classes):
            self.class_of_rank[list(rank_class.ranks)] = index
        if (self.class_of_rank < 0).any():
            missing = int(np.flatnonzero(self.class_of_rank < 0)[0])
            raise SimulationError(
                Finding(
                    rule="ranks-not-captured",
                    severity=Severity.ERROR,
                    message=f"the work of every rank must be known, but rank {missing} is in no captured class",
                    ranks=(missing,),
                    remedy="capture the run with --ranks auto or --ranks all",
                )
            )

    def program(self, index: int, *, device: int) -> Program:
        if (index, device) not in self._made:
            records = self._trace.classes[index].records
            self._made[index, device] = compile_program(records, self._tables[device].costs)
        return self._made[index, device]


def _slowness(topology: Topology, what_if: WhatIf) -> npt.NDArray[np.float64]:
    """Return the factor on the work of each rank."""
    slowness = np.ones(topology.num_ranks)
    num_nodes = int(topology.node_of.max()) + 1
    for node, speed in what_if.slow_nodes.items():
        if node >= num_nodes:
            raise WhatIfError(
                f"a slow node must be one of the {num_nodes} nodes of the run, but got {node}; "
                f"choose one from 0 to {num_nodes - 1}"
            )
        slowness[topology.node_of == node] = 1 / speed
    return slowness


def _first_colours(
    trace: Trace, topology: Topology, slowness: npt.NDArray[np.float64], *, apart: bool
) -> npt.NDArray[np.uint64]:
    """Colour ranks by class, device and speed; with `apart`, each rank differently."""
    if apart:
        return np.arange(1, trace.world_size + 1, dtype=np.uint64)
    colours = np.zeros(trace.world_size, dtype=np.uint64)
    for index, rank_class in enumerate(trace.classes):
        colours[list(rank_class.ranks)] = index + 1
    colours = colours * np.uint64(1024) + topology.device_index.astype(np.uint64)
    _, speed = np.unique(slowness, return_inverse=True)
    return colours * np.uint64(1 << 20) + speed.reshape(-1).astype(np.uint64)


def _speeds(folded: Fold, slowness: npt.NDArray[np.float64], what_if: WhatIf) -> list[ActorSpeed]:
    return [
        ActorSpeed(
            slowness=float(slowness[rank]),
            jitter=what_if.jitter,
            seed=(what_if.seed * 0x9E3779B97F4A7C15 + rank + 1) % 2**64,
        )
        for rank in folded.representatives.tolist()
    ]


def _up_to_the_stall(program: Program, end_ns: npt.NDArray[np.int64]) -> Program:
    """Return the program with only the steps that ended.

    The stages of an asynchronous pipeline take different numbers of micro-batches per update. So the capture may end
    for one of them before another has got from it what its own last steps need; a message that is never sent at all
    is an error of the capture already.
    """
    return replace(program, steps=program.steps[end_ns[program.steps] >= 0])


def _finished(program: Program, end_ns: npt.NDArray[np.int64]) -> bool:
    """Return whether the last step ended: what follows it does not matter."""
    return bool(len(program.steps)) and bool(end_ns[program.steps[-1]] >= 0)
