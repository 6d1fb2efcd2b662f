"""`apex.normalization`, and `apex.contrib.layer_norm`, where apex is not installed."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sandtable.vgpu.packages.fused.norm import NormSettings, fused_norm

__all__ = [
    "FastLayerNorm",
    "FastLayerNormFN",
    "FusedLayerNorm",
    "FusedLayerNormAffineFunction",
    "FusedRMSNorm",
    "MixedFusedLayerNorm",
    "MixedFusedRMSNorm",
    "fused_layer_norm",
    "fused_layer_norm_affine",
    "fused_rms_norm",
    "fused_rms_norm_affine",
    "mixed_dtype_fused_layer_norm_affine",
    "mixed_dtype_fused_rms_norm_affine",
]


def _normalise(x: Tensor, weight: Tensor | None, bias: Tensor | None, *, is_rms: bool, is_mixed: bool) -> Any:
    name = "apex::rms_norm" if is_rms else "apex::layer_norm"
    out_dtype = weight.dtype if is_mixed and weight is not None else None
    return fused_norm(NormSettings(name=name, is_rms=is_rms, out_dtype=out_dtype), x, weight, bias)


def fused_layer_norm(x: Tensor, normalized_shape: Any, eps: float = 1e-6, memory_efficient: bool = False) -> Any:
    """Normalise without weights."""
    return _normalise(x, None, None, is_rms=False, is_mixed=False)


def fused_rms_norm(x: Tensor, normalized_shape: Any, eps: float = 1e-6, memory_efficient: bool = False) -> Any:
    """Normalise by the root of the mean square, without weights."""
    return _normalise(x, None, None, is_rms=True, is_mixed=False)


def fused_layer_norm_affine(x: Tensor, weight: Tensor, bias: Tensor, *_: Any, **__: Any) -> Any:
    """Normalise."""
    return _normalise(x, weight, bias, is_rms=False, is_mixed=False)


def fused_rms_norm_affine(x: Tensor, weight: Tensor, *_: Any, **__: Any) -> Any:
    """Normalise by the root of the mean square."""
    return _normalise(x, weight, None, is_rms=True, is_mixed=False)


class FusedLayerNormAffineFunction:
    """The same as a function of autograd, which Megatron-LM calls, and whose arguments it looks at."""

    apply = staticmethod(fused_layer_norm_affine)

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, shape: Any, eps: float, memory_efficient: bool = False
    ) -> Any:
        """Normalise."""
        return fused_layer_norm_affine(x, weight, bias)


FastLayerNormFN = FusedLayerNormAffineFunction


def mixed_dtype_fused_layer_norm_affine(x: Tensor, weight: Tensor, bias: Tensor, *_: Any, **__: Any) -> Any:
    """Normalise; the result has the weights' type."""
    return _normalise(x, weight, bias, is_rms=False, is_mixed=True)


def mixed_dtype_fused_rms_norm_affine(x: Tensor, weight: Tensor, *_: Any, **__: Any) -> Any:
    """Normalise by the root of the mean square; the result has the weights' type."""
    return _normalise(x, weight, None, is_rms=True, is_mixed=True)


class _FusedNorm(torch.nn.Module):
    """A norm with weights, or without."""

    is_rms, is_mixed = False, False

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        memory_efficient: bool = False,
        **_: Any,
    ) -> None:
        super().__init__()
        shape = (normalized_shape,) if isinstance(normalized_shape, numbers.Integral) else normalized_shape
        self.normalized_shape, self.eps = torch.Size(shape), eps  # type: ignore[arg-type]
        self.elementwise_affine, self.memory_efficient = elementwise_affine, memory_efficient
        new = torch.nn.Parameter if elementwise_affine else lambda _: None
        self.weight = new(torch.empty(self.normalized_shape))
        self.bias = None if self.is_rms else new(torch.empty(self.normalized_shape))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start as the identity."""
        if self.weight is not None:
            torch.nn.init.ones_(self.weight)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Any:
        """Normalise; on the host as torch does."""
        if not x.is_cuda:
            if self.is_rms:
                return torch.nn.functional.rms_norm(x, self.normalized_shape, self.weight, self.eps)
            return torch.nn.functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return _normalise(x, self.weight, self.bias, is_rms=self.is_rms, is_mixed=self.is_mixed)


class FusedLayerNorm(_FusedNorm):
    """Layer norm."""


class MixedFusedLayerNorm(FusedLayerNorm):
    """Layer norm whose result has the weights' type."""

    is_mixed = True


class FusedRMSNorm(_FusedNorm):
    """RMS norm."""

    is_rms = True


class MixedFusedRMSNorm(FusedRMSNorm):
    """RMS norm whose result has the weights' type."""

    is_mixed = True


class FastLayerNorm(FusedLayerNorm):
    """Layer norm for sizes that are known when it is compiled."""
