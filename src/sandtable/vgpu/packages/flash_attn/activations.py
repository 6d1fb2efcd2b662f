"""`flash_attn.ops.activations`: a gate and its product with the other half, in one kernel each way."""

from __future__ import annotations

from torch import Tensor

from sandtable.vgpu.packages.fused.pointwise import fused_pointwise

__all__ = ["swiglu"]


def swiglu(x: Tensor, y: Tensor) -> Tensor:
    """Return silu(x) · y."""
    return fused_pointwise("flash_attn::swiglu", x, y)
