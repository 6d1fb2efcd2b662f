"""`xformers.ops`: SwiGLU, RMS norm, rotary embeddings for caches, and views of packed tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sandtable.vgpu.packages.fused.norm import NormSettings, fused_norm
from sandtable.vgpu.packages.fused.pointwise import fused_pointwise
from sandtable.vgpu.packages.fused.rotary import fused_rotary

__all__ = ["RMSNorm", "SwiGLU", "rms_norm", "rms_norm_add", "rope_padded", "swiglu", "unbind"]


def swiglu(x: Tensor, w1: Tensor, b1: Any, w2: Tensor, b2: Any, w3: Tensor, b3: Any, *, op: Any = None) -> Tensor:
    """Return W3 (silu(W1 x) · W2 x): three products, and the gate in one kernel."""
    linear = torch.nn.functional.linear
    return linear(fused_pointwise("xformers::silu_bw_fused", linear(x, w1, b1), linear(x, w2, b2)), w3, b3)


class SwiGLU(torch.nn.Module):
    """The gated layer; with `_pack_weights` its two first products are one."""

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int | None = None,
        bias: bool = True,
        *,
        _pack_weights: bool = True,
        dtype: Any = None,
        device: Any = None,
    ) -> None:
        super().__init__()
        options = {"bias": bias, "dtype": dtype, "device": device}
        self.w12 = torch.nn.Linear(in_features, 2 * hidden_features, **options) if _pack_weights else None
        if not _pack_weights:
            self.w1 = torch.nn.Linear(in_features, hidden_features, **options)
            self.w2 = torch.nn.Linear(in_features, hidden_features, **options)
        self.w3 = torch.nn.Linear(hidden_features, out_features or in_features, **options)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer."""
        gate, up = (self.w1(x), self.w2(x)) if self.w12 is None else self.w12(x).chunk(2, dim=-1)
        result: Tensor = self.w3(fused_pointwise("xformers::silu_bw_fused", gate, up))
        return result


def rms_norm(x: Tensor, weight: Tensor | None, eps: float = 1e-6) -> Any:
    """Normalise in one kernel."""
    return fused_norm(NormSettings(name="xformers::rms_norm", is_rms=True), x, weight)


def rms_norm_add(x: Tensor, y: Tensor, weight: Tensor | None, eps: float = 1e-6) -> Any:
    """Add y to x in place and normalise the sum."""
    x.add_(y)
    return rms_norm(x, weight, eps)


class RMSNorm(torch.nn.Module):
    """RMS norm with a weight, or without."""

    def __init__(self, dim: int, include_weight: bool = True, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(dim)) if include_weight else None

    def forward(self, x: Tensor) -> Any:
        """Normalise."""
        return rms_norm(x, self.weight, self.eps)

    def increment_and_forward_(self, x: Tensor, y: Tensor) -> Any:
        """Add y to x in place and normalise the sum."""
        return rms_norm_add(x, y, self.weight, self.eps)


def rope_padded(xq: Tensor, xk: Tensor, xv: Tensor, cache_k: Tensor, cache_v: Tensor, *_: Any, **__: Any) -> Tensor:
    """Rotate queries, and write rotated keys and values to the cache; inference."""
    return fused_rotary("xformers::rope_padded", xq, angles=(xk, xv))[0]


def unbind(x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Return views; the gradient is stacked."""
    return x.unbind(dim)
