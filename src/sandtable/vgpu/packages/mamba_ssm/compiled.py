"""`selective_scan_cuda`: the scan of Mamba 1, in one kernel each way.

Per position, channel and state it takes an exponential and three multiply-adds. An exponential is counted as eight
operations, because the special-function units have an eighth of the rate of the ordinary lanes (NVIDIA A100 and H100
whitepapers: 16 per clock and multiprocessor, against 64 or 128 multiply-adds). The backward kernel scans twice.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sandtable.trace.work import Work
from sandtable.vgpu.packages.kernels import record_kernel

__all__ = ["bwd", "fwd"]

_OPERATIONS = 8 + 3 * 2
_CHUNK = 2048
"""Positions after which the state is kept for the backward pass."""


def fwd(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Any, z: Any, delta_bias: Any, delta_softplus: bool  # noqa: N803
) -> list[Tensor]:  # fmt: skip
    """Scan; return the output, the states between chunks, and with z the gated output."""
    batch, channels, length = u.shape
    out = torch.empty_like(delta)
    states = u.new_empty((batch, channels, -(-length // _CHUNK), A.shape[1] * 2), dtype=torch.float32)
    gated = [torch.empty_like(z)] if z is not None else []
    inputs = [x for x in (u, delta, A, B, C, D, z, delta_bias) if x is not None]
    _launch("selective_scan_fwd", inputs, [out, states, *gated], u.numel() * A.shape[1])
    return [out, states, *gated]


def bwd(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Any, z: Any, delta_bias: Any, dout: Tensor,  # noqa: N803
    x: Any, out: Any, dz: Any, delta_softplus: bool, recompute_out_z: bool,
) -> list[Any]:  # fmt: skip
    """Differentiate `fwd`; gradients that positions share are added up in float32."""
    du, ddelta = torch.empty_like(u), torch.empty_like(delta)
    shared = [torch.zeros_like(x, dtype=torch.float32) for x in (A, B, C)]
    rest = [None if x is None else torch.zeros_like(x, dtype=torch.float32) for x in (D, delta_bias)]
    dz = torch.empty_like(z) if z is not None and dz is None else dz
    gated = [torch.empty_like(out)] if recompute_out_z else []
    outputs = [x for x in (du, ddelta, *shared, *rest, dz, *gated) if x is not None]
    inputs = [t for t in (u, delta, A, B, C, D, z, delta_bias, dout, x, out) if t is not None]
    _launch("selective_scan_bwd", inputs, outputs, 2 * u.numel() * A.shape[1])
    return [du, ddelta, *shared, *rest, *([dz] if z is not None else []), *gated]


def _launch(name: str, inputs: list[Tensor], outputs: list[Tensor], num_updates: int) -> None:
    work = Work(flops=num_updates * _OPERATIONS, dtype="float32")
    record_kernel(f"mamba_ssm::{name}", inputs=inputs, outputs=outputs, work=work)
