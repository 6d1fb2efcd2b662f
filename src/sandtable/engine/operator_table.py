"""The operator table: what the operators of a trace cost on one device, one entry per signature."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["BASES", "Costs", "OperatorTable"]

F64 = npt.NDArray[np.float64]

BASES = ("measured", "fitted", "nominal")
"""What a cost rests on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What the clock needs of each operator."""

    work_ns: F64
    host_ns: F64
    """By phase and signature: [num_phases, num_signatures]."""
    launch_host_ns: F64
    """By `LaunchKind`, for kernels that are not launched eagerly: [num_launch_kinds]."""
    hooked_scale: float
    """How much longer the host takes to issue an operator while hooks in Python take what autograd saves."""
    is_copy: npt.NDArray[np.bool_]
    has_flops: npt.NDArray[np.bool_]
    call_host_ns: float
    mark_host_ns: float
    launch_latency_ns: float
    is_synchronous: bool
    """The host does the work itself (a CPU): it waits for every operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTable:
    """Costs for the clock, and the figures that reports show for each signature."""

    costs: Costs
    flops: npt.NDArray[np.float64]
    bytes_moved: npt.NDArray[np.float64]
    basis: npt.NDArray[np.uint8]
    """Index into `BASES`."""
    family: tuple[str, ...]
