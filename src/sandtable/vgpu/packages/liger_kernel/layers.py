"""Layers of liger-kernel, where it is not installed: one kernel each way, as its Triton kernels are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sandtable.vgpu.packages.fused.norm import NormSettings, fused_norm
from sandtable.vgpu.packages.fused.pointwise import fused_pointwise
from sandtable.vgpu.packages.fused.rotary import fused_rotary

__all__ = [
    "LigerGEGLUMLP",
    "LigerLayerNorm",
    "LigerRMSNorm",
    "LigerSwiGLUMLP",
    "liger_geglu",
    "liger_layer_norm",
    "liger_rms_norm",
    "liger_rotary_pos_emb",
    "liger_swiglu",
    "normalise",
    "swiglu_forward",
]

_RMS = NormSettings(name="liger_kernel::rms_norm", is_rms=True)
_LAYER = NormSettings(name="liger_kernel::layer_norm", is_rms=False)


class LigerRMSNorm(nn.Module):
    """RMS norm over the last dimension."""

    def __init__(self, hidden_size: int, eps: float = 1e-6, *_: Any, init_fn: str = "ones", **__: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size) if init_fn == "ones" else torch.zeros(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states: Tensor) -> Tensor:
        return normalise(self, hidden_states)


class LigerLayerNorm(nn.Module):
    """Layer norm over the last dimension."""

    def __init__(self, hidden_size: int, eps: float = 1e-6, bias: bool = False, init_fn: str = "ones") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size) if init_fn == "ones" else torch.zeros(hidden_size))
        self.bias = nn.Parameter(torch.zeros(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states: Tensor) -> Tensor:
        return liger_layer_norm(hidden_states, self.weight, self.bias, self.variance_epsilon)


class LigerSwiGLUMLP(nn.Module):
    """A feed-forward layer whose gate and product are one kernel."""

    def __init__(self, config: Any, intermediate_size: int | None = None, **_: Any) -> None:
        super().__init__()
        width, inner = config.hidden_size, intermediate_size or config.intermediate_size
        has_bias = bool(getattr(config, "mlp_bias", False))
        self.config, self.hidden_size, self.intermediate_size = config, width, inner
        self.gate_proj = nn.Linear(width, inner, bias=has_bias)
        self.up_proj = nn.Linear(width, inner, bias=has_bias)
        self.down_proj = nn.Linear(inner, width, bias=has_bias)

    def forward(self, x: Tensor) -> Tensor:
        return swiglu_forward(self, x)


class LigerGEGLUMLP(LigerSwiGLUMLP):
    """The same with GELU."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(liger_geglu(self.gate_proj(x), self.up_proj(x)))
        return out


def normalise(self: Any, hidden_states: Tensor) -> Tensor:
    """Normalise as a method of any module with a weight."""
    return liger_rms_norm(hidden_states, self.weight)


def swiglu_forward(self: Any, x: Tensor) -> Tensor:
    """Compute the feed-forward layer as a method of any module with the three projections."""
    out: Tensor = self.down_proj(liger_swiglu(self.gate_proj(x), self.up_proj(x)))
    return out


def liger_rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6, *_: Any, **__: Any) -> Tensor:
    """Normalise rows by their mean square."""
    out: Tensor = fused_norm(_RMS, x, weight)
    return out


def liger_layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-6) -> Tensor:
    """Normalise rows by mean and variance."""
    out: Tensor = fused_norm(_LAYER, x, weight, bias)
    return out


def liger_swiglu(a: Tensor, b: Tensor, *_: Any) -> Tensor:
    """Return silu(a) * b."""
    return fused_pointwise("liger_kernel::swiglu", a, b)


def liger_geglu(a: Tensor, b: Tensor) -> Tensor:
    """Return gelu(a) * b."""
    return fused_pointwise("liger_kernel::geglu", a, b)


def liger_rotary_pos_emb(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, position_ids: Any = None, unsqueeze_dim: int = 1
) -> tuple[Tensor, ...]:
    """Rotate queries and keys in one kernel."""
    return fused_rotary("liger_kernel::rope", q, k, angles=(cos, sin))
