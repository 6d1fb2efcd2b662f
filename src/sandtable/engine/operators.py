"""Price operators: what those of a trace cost on one device, computed once per signature."""

import numpy as np

from sandtable.engine.compute.model import CostModel
from sandtable.engine.operator_table import BASES, Costs, OperatorTable
from sandtable.trace.kinds import LaunchKind, Phase
from sandtable.trace.signature import Signature
from sandtable.trace.trace import Trace

__all__ = ["price_operators"]

HOOKED_SCALE = 2.3
"""Measured with torch 2.13 on a host alone: the forward pass of a Llama of Hugging Face with tiny tensors takes 2.5 ms,
and 6.0 ms in `torch.utils.checkpoint` (not reentrant), whose hooks see every tensor that is saved."""

MARK_HOST_NS = 1_000.0
"""Recording an event or waiting for one, on the host: about a microsecond."""


def price_operators(trace: Trace, model: CostModel, *, host_scale: float = 1.0) -> OperatorTable:
    """Price each distinct signature once; a slow host takes `host_scale` times as long to issue it."""
    signatures = trace.signatures
    operator_costs = [model.cost(signature) for signature in signatures]
    host = [[model.host_ns(signature, phase) for signature in signatures] for phase in Phase]
    flops = np.array([cost.flops for cost in operator_costs], dtype=np.float64)
    costs = Costs(
        work_ns=np.array([cost.work_ns for cost in operator_costs], dtype=np.float64),
        host_ns=np.array(host, dtype=np.float64).reshape(len(Phase), len(operator_costs)) * host_scale,
        launch_host_ns=np.array([model.launch_ns(kind) for kind in LaunchKind], dtype=np.float64) * host_scale,
        hooked_scale=HOOKED_SCALE,
        is_copy=np.array([_spares_the_card(signature) for signature in signatures], dtype=bool),
        has_flops=np.array(flops > 0, dtype=bool),
        call_host_ns=model.call_host_ns * host_scale,
        mark_host_ns=MARK_HOST_NS * host_scale,
        launch_latency_ns=model.launch_latency_ns,
        is_synchronous=model.is_synchronous,
    )
    return OperatorTable(
        costs=costs,
        flops=flops,
        bytes_moved=np.array([cost.bytes for cost in operator_costs], dtype=np.float64),
        basis=np.array([BASES.index(cost.basis) for cost in operator_costs], dtype=np.uint8),
        family=tuple(cost.family for cost in operator_costs),
    )


def _spares_the_card(signature: Signature) -> bool:
    """Return whether this takes nothing of the card itself: a copy to or from it, or work of a process beside it."""
    if signature.work is not None and signature.work.place == "process":
        return True
    return signature.name in ("copy::host_to_device", "copy::device_to_host")
