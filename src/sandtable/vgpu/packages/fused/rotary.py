"""Rotary embedding in one kernel, which needs only the angles for its gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sandtable.trace.work import Work
from sandtable.vgpu.packages.kernels import record_kernel

__all__ = ["fused_rotary"]


def fused_rotary(name: str, *tensors: Tensor, angles: tuple[Tensor, ...], inplace: bool = False) -> tuple[Tensor, ...]:
    """Rotate the tensors by the angles (cosines and sines, say) in one kernel; the backward kernel rotates back."""
    result: tuple[Tensor, ...] = _Rotary.apply(name, inplace, angles, *tensors)  # type: ignore[no-untyped-call]
    return result


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str, inplace: bool, angles: tuple[Tensor, ...], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(*angles)
        ctx.name, ctx.inplace = name, inplace
        if inplace:
            ctx.mark_dirty(*tensors)
        outputs = tensors if inplace else tuple(map(torch.empty_like, tensors))
        record_kernel(name, inputs=[*tensors, *angles], outputs=outputs, work=Work())
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        outputs = grads if ctx.inplace else tuple(map(torch.empty_like, grads))
        name = f"{ctx.name}_backward"
        record_kernel(name, inputs=[*grads, *ctx.saved_tensors], outputs=outputs, work=Work())
        return None, None, None, *outputs
