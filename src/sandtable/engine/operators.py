"""What the operators of a trace cost, one entry a signature, on one device."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sandtable.engine.compute import CostModel
from sandtable.engine.program import Costs
from sandtable.trace import Phase, Trace

__all__ = ["OperatorTable", "price_operators"]

MARK_HOST_NS = 1_000.0
"""Recording an event or waiting for one, on the host: about a microsecond."""

BASES = ("measured", "fitted", "nominal")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTable:
    """Costs for the clock, and beside them what reports want to know of each signature."""

    costs: Costs
    flops: npt.NDArray[np.float64]
    bytes_moved: npt.NDArray[np.float64]
    basis: npt.NDArray[np.uint8]
    """Index into `BASES`."""
    family: tuple[str, ...]


def price_operators(trace: Trace, model: CostModel, *, host_scale: float = 1.0) -> OperatorTable:
    """Asks the model once for each distinct signature; a slow host takes `host_scale` times as long to issue it."""
    signatures = trace.signatures
    found = [model.cost(signature) for signature in signatures]
    host = [[model.host_ns(signature, phase) for signature in signatures] for phase in Phase]
    names = [signature.name for signature in signatures]
    flops = np.array([cost.flops for cost in found], dtype=np.float64)
    costs = Costs(
        work_ns=np.array([cost.work_ns for cost in found], dtype=np.float64),
        host_ns=np.array(host, dtype=np.float64).reshape(len(Phase), len(found)) * host_scale,
        is_copy=np.array([_crosses_host_link(name) for name in names], dtype=bool),
        has_flops=np.array(flops > 0, dtype=bool),
        call_host_ns=model.call_host_ns * host_scale,
        mark_host_ns=MARK_HOST_NS * host_scale,
        launch_latency_ns=model.launch_latency_ns,
        is_synchronous=model.is_synchronous,
    )
    return OperatorTable(
        costs=costs,
        flops=flops,
        bytes_moved=np.array([cost.bytes for cost in found], dtype=np.float64),
        basis=np.array([BASES.index(cost.basis) for cost in found], dtype=np.uint8),
        family=tuple(cost.family for cost in found),
    )


def _crosses_host_link(name: str) -> bool:
    return name in ("copy::host_to_device", "copy::device_to_host")
