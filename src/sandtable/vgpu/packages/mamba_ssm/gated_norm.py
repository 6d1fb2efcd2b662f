"""`mamba_ssm.ops.triton.layernorm_gated`: a norm and a gate in one kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sandtable.vgpu.packages.fused.norm import NormSettings, fused_norm
from sandtable.vgpu.packages.fused.pointwise import fused_pointwise

__all__ = ["RMSNorm", "layernorm_fn", "rmsnorm_fn"]


def layernorm_fn(
    x: Tensor, weight: Tensor, bias: Any, z: Tensor | None = None, eps: float = 1e-6, group_size: Any = None,
    norm_before_gate: bool = True, is_rms_norm: bool = False,
) -> Any:  # fmt: skip
    """Normalise, and gate with silu(z): the gate is counted as a kernel of its own, as its backward needs x again."""
    y = fused_norm(NormSettings(name="mamba_ssm::layer_norm_gated", is_rms=is_rms_norm), x, weight, bias)
    return y if z is None else fused_pointwise("mamba_ssm::gate", y, z)


def rmsnorm_fn(x: Tensor, weight: Tensor, bias: Any, *args: Any, **options: Any) -> Any:
    """Normalise by the root of the mean square, and gate."""
    return layernorm_fn(x, weight, bias, *args, **{**options, "is_rms_norm": True})


class RMSNorm(torch.nn.Module):
    """RMS norm with a gate."""

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        group_size: int | None = None,
        norm_before_gate: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.eps, self.group_size, self.norm_before_gate = eps, group_size, norm_before_gate
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)

    def forward(self, x: Tensor, z: Tensor | None = None) -> Any:
        """Normalise, and gate."""
        return rmsnorm_fn(x, self.weight, None, z=z)
