"""Simulate: from what each rank did, and what there is to do it on, to when everything happens."""

import numpy as np
import numpy.typing as npt

from sandtable.cluster import Cluster, Device, Topology
from sandtable.engine.clock import ActorSpeed, run_clock
from sandtable.engine.compute import CostModel, MeasuredTable
from sandtable.engine.fold import Fold, fold
from sandtable.engine.network import Planner
from sandtable.engine.operators import OperatorTable, price_operators
from sandtable.engine.program import Program, compile_program
from sandtable.engine.stalls import explain_stall
from sandtable.engine.timeline import Timeline
from sandtable.engine.what_if import WhatIf
from sandtable.engine.wiring import wire
from sandtable.errors import SimulationError
from sandtable.trace import Trace

__all__ = ["simulate"]


def simulate(
    trace: Trace,
    cluster: Cluster,
    *,
    what_if: WhatIf | None = None,
    measured: MeasuredTable | None = None,
    folding: bool = True,
) -> Timeline:
    """When every rank of `trace` does what, on `cluster`.

    `measured` times of operators go before the formulas. Without `folding` every rank is an actor of its own: the same
    answer, slower.
    """
    what_if = what_if or WhatIf()
    topology = Topology(cluster, ranks_per_node=trace.ranks_per_node, num_ranks=trace.world_size)
    if what_if.link_scale:
        topology = topology.scaled(what_if.link_scale)
    tables = [
        price_operators(trace, CostModel(device, table=measured), host_scale=_host_scale(topology, device))
        for device in topology.devices
    ]
    shop = _Programs(trace, tables)
    slowness = _slowness(topology, what_if)
    colours = _first_colours(trace, topology, slowness, apart=what_if.jitter > 0 or not folding)
    edges = {k: shop.program(k, device=0).edges for k in range(len(trace.classes))}
    folded = fold(trace, topology, edges=edges, first_colour=colours)
    devices = topology.device_index[folded.representatives]
    classes = shop.class_of_rank[folded.representatives]
    programs = [shop.program(int(k), device=int(d)) for k, d in zip(classes, devices, strict=True)]
    speeds = _speeds(folded, slowness, what_if)
    backend = "gloo" if topology.devices[0].vendor == "cpu" else "nccl"
    wiring = wire(folded, programs, Planner(topology, backend=backend))
    times, stuck = run_clock(programs, wiring, speeds)
    if stuck and not all(_finished(program, each.end_ns) for program, each in zip(programs, times, strict=True)):
        raise explain_stall(trace, programs, folded.representatives.tolist(), stuck)
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
    """How slowly work is issued to such a device: by the slowest host that has one."""
    return max(kind.host.issue_scale for kind in topology.kinds if kind.device == device)


class _Programs:
    """Programs made when first asked for: one for each class of ranks on each kind of device."""

    def __init__(self, trace: Trace, tables: list[OperatorTable]) -> None:
        self._trace, self._tables = trace, tables
        self._made: dict[tuple[int, int], Program] = {}
        self.class_of_rank = np.full(trace.world_size, -1, dtype=np.int64)
        for k, each in enumerate(trace.classes):
            self.class_of_rank[list(each.ranks)] = k
        if (self.class_of_rank < 0).any():
            missing = int(np.flatnonzero(self.class_of_rank < 0)[0])
            raise SimulationError(
                f"the work of every rank must be known, but rank {missing} is in no captured class; "
                "capture the run with --ranks auto or --ranks all"
            )

    def program(self, index: int, *, device: int) -> Program:
        if (index, device) not in self._made:
            records = self._trace.classes[index].records
            self._made[index, device] = compile_program(records, self._tables[device].costs)
        return self._made[index, device]


def _slowness(topology: Topology, what_if: WhatIf) -> npt.NDArray[np.float64]:
    """The factor on the work of each rank."""
    slowness = np.ones(topology.num_ranks)
    num_nodes = int(topology.node_of.max()) + 1
    for node, speed in what_if.slow_nodes.items():
        if node >= num_nodes:
            raise SimulationError(
                f"a slow node must be one of the {num_nodes} of the run, but got {node}; "
                f"choose one from 0 to {num_nodes - 1}"
            )
        slowness[topology.node_of == node] = 1 / speed
    return slowness


def _first_colours(
    trace: Trace, topology: Topology, slowness: npt.NDArray[np.float64], *, apart: bool
) -> npt.NDArray[np.uint64]:
    """Ranks differ from the start by class, device and speed; all of them if they are to be kept apart."""
    if apart:
        return np.arange(1, trace.world_size + 1, dtype=np.uint64)
    colours = np.zeros(trace.world_size, dtype=np.uint64)
    for k, each in enumerate(trace.classes):
        colours[list(each.ranks)] = k + 1
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


def _finished(program: Program, end_ns: npt.NDArray[np.int64]) -> bool:
    """Whether the last step was made: what is left over after it does not matter."""
    return bool(len(program.steps)) and bool(end_ns[program.steps[-1]] >= 0)
