"""`flash_attn.ops.triton.layer_norm`, `flash_attn.ops.rms_norm`, `flash_attn.ops.layer_norm`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sandtable.vgpu.packages.fused.norm import NormSettings, fused_norm

__all__ = ["DropoutAddLayerNorm", "RMSNorm", "layer_norm", "layer_norm_fn", "rms_norm", "rms_norm_fn"]


def layer_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    x1: Tensor | None = None,
    weight1: Tensor | None = None,
    bias1: Tensor | None = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    rowscale: Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    zero_centered_weight: bool = False,
    is_rms_norm: bool = False,
    return_dropout_mask: bool = False,
    out_dtype: torch.dtype | None = None,
    **_: Any,
) -> Any:
    """Normalise x + residual; with `prenorm` return the sum, too."""
    if x1 is not None or weight1 is not None or return_dropout_mask:
        raise NotImplementedError(
            "layer_norm_fn of flash_attn's replacement takes one x and one weight; install flash_attn"
        )
    settings = NormSettings(
        name="flash_attn::layer_norm",
        is_rms=is_rms_norm,
        out_dtype=out_dtype or (torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None),
        sum_dtype=torch.float32 if residual is None and residual_in_fp32 else None,
        returns_sum=prenorm,
    )
    return fused_norm(settings, x, weight, bias, residual)


def rms_norm_fn(x: Tensor, weight: Tensor, bias: Tensor | None, *args: Any, **options: Any) -> Any:
    """Normalise by the root of the mean square."""
    return layer_norm_fn(x, weight, bias, *args, **{**options, "is_rms_norm": True})


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float = 1e-6) -> Any:
    """Normalise, as `flash_attn.ops.layer_norm`."""
    return layer_norm_fn(x, weight, bias, eps=epsilon)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float = 1e-6) -> Any:
    """Normalise, as `flash_attn.ops.rms_norm`."""
    return rms_norm_fn(x, weight, None, eps=epsilon)


class RMSNorm(torch.nn.Module):
    """RMS norm with a weight."""

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        dropout_p: float = 0.0,
        zero_centered_weight: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.eps, self.zero_centered_weight = eps, zero_centered_weight
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)

    def forward(
        self, x: Tensor, residual: Tensor | None = None, prenorm: bool = False, residual_in_fp32: bool = False
    ) -> Any:
        """Normalise x + residual."""
        return rms_norm_fn(x, self.weight, None, residual=residual, prenorm=prenorm, residual_in_fp32=residual_in_fp32)


class DropoutAddLayerNorm(torch.nn.Module):
    """Layer norm of x + residual."""

    def __init__(
        self,
        hidden_size: int,
        prenorm: bool = False,
        p: float = 0.0,
        eps: float = 1e-5,
        residual_in_fp32: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.prenorm, self.residual_in_fp32, self.eps = prenorm, residual_in_fp32, eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.bias = torch.nn.Parameter(torch.zeros(hidden_size, device=device, dtype=dtype))

    def forward(self, x0: Tensor, residual: Tensor | None = None) -> Any:
        """Normalise."""
        return layer_norm_fn(
            x0, self.weight, self.bias, residual, prenorm=self.prenorm, residual_in_fp32=self.residual_in_fp32
        )
