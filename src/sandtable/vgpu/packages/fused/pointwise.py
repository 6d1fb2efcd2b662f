"""Pointwise: one kernel reads some tensors and writes one; its backward reads them again and writes their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sandtable.trace.work import Work
from sandtable.vgpu.packages.kernels import record_kernel

__all__ = ["fused_pointwise"]


def fused_pointwise(name: str, *inputs: Tensor, shape: Sequence[int] | None = None) -> Tensor:
    """Return what kernel `name` makes of the inputs: a tensor like the first, or of `shape`.

    Autograd saves the inputs; the backward kernel is `<name>_backward`.
    """
    result: Tensor = _Pointwise.apply(name, None if shape is None else tuple(shape), *inputs)  # type: ignore[no-untyped-call]
    return result


class _Pointwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str, shape: tuple[int, ...] | None, *inputs: Tensor) -> Tensor:
        out = torch.empty_like(inputs[0]) if shape is None else inputs[0].new_empty(shape)
        ctx.save_for_backward(*inputs)
        ctx.name = name
        record_kernel(name, inputs=inputs, outputs=[out], work=Work())
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        saved = ctx.saved_tensors
        needs = ctx.needs_input_grad[2:]
        grads = [torch.empty_like(tensor) if need else None for tensor, need in zip(saved, needs, strict=True)]
        written = [tensor for tensor in grads if tensor is not None]
        record_kernel(f"{ctx.name}_backward", inputs=[grad, *saved], outputs=written, work=Work())
        return None, None, *grads
