"""The public functions of causal_conv1d, where it is not installed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sandtable.vgpu.packages.causal_conv1d import compiled

__all__ = ["causal_conv1d_fn", "causal_conv1d_update"]


def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: str | None = None,
) -> Any:
    """Convolve (batch, channels, length) with a filter per channel."""
    out = _Convolution.apply(x, weight, bias, seq_idx)  # type: ignore[no-untyped-call]
    if not return_final_states:
        return out
    states = x.new_empty(x.shape[0], weight.shape[1] - 1, x.shape[1]).transpose(1, 2)
    return out, states if final_states_out is None else final_states_out


def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: Any = None,
    *_: Any,
    **__: Any,
) -> Tensor:
    """Convolve one more position, without gradients."""
    out = torch.empty_like(x)
    compiled.causal_conv1d_update(x, conv_state, weight, bias, out)
    return out


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, seq_idx: Tensor | None) -> Tensor:
        x = x if 1 in (x.stride(1), x.stride(2)) else x.contiguous()
        out = torch.empty_like(x)
        compiled.causal_conv1d_fwd(x, weight, bias, seq_idx, None, out, None, True)
        ctx.save_for_backward(x, weight, bias, seq_idx)
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        x, weight, bias, seq_idx = ctx.saved_tensors
        dx = torch.empty_like(x)
        # Blocks add to these in float32.
        dweight = torch.zeros_like(weight, dtype=torch.float32)
        dbias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        compiled.causal_conv1d_bwd(x, weight, bias, dout, seq_idx, None, None, dx, dweight, dbias, None, True)
        return dx, dweight.to(weight.dtype), None if dbias is None else dbias.to(bias.dtype), None
