"""Kernels that Megatron-LM calls by the names of apex's compiled modules.

fused_weight_gradient_mlp_cuda      a weight's gradient, added to the main gradient by the product itself
scaled_*softmax_cuda                softmax of attention scores with scale and mask, in place of three kernels
fused_rotary_positional_embedding   rotary embedding in one kernel
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from sandtable.trace.work import Work
from sandtable.vgpu.packages.kernels import record_kernel

__all__ = ["fill_rope", "fill_softmax", "wgrad_gemm_accum_fp16", "wgrad_gemm_accum_fp32"]


def wgrad_gemm_accum_fp32(x: Tensor, grad_output: Tensor, main_grad: Tensor) -> None:
    """Add the weight's gradient to `main_grad`."""
    tokens, grads = x.reshape(-1, x.shape[-1]), grad_output.reshape(-1, grad_output.shape[-1])
    product = (1, grads.shape[1], tokens.shape[1], tokens.shape[0])
    work = Work(family="gemm", products=(product,), dtype=str(x.dtype).removeprefix("torch."))
    record_kernel("apex::wgrad_gemm_accum", inputs=[tokens, grads, main_grad], outputs=[main_grad], work=work)


wgrad_gemm_accum_fp16 = wgrad_gemm_accum_fp32


def fill_softmax(module: ModuleType) -> None:
    """Fill a module with softmax and its gradient, which takes the place of the gradient it gets."""
    name = f"apex::{module.__name__.removesuffix('_cuda')}"

    def forward(scores: Tensor, *mask_and_scale: Any) -> Tensor:
        masks = [value for value in mask_and_scale if isinstance(value, Tensor) and value.dim() == 4]
        out = torch.empty_like(scores)
        record_kernel(name, inputs=[scores, *masks], outputs=[out], work=Work(family="normalisation"))
        return out

    def backward(grad: Tensor, softmax: Tensor, scale: Any) -> Tensor:
        work = Work(family="normalisation")
        record_kernel(f"{name}_backward", inputs=[grad, softmax], outputs=[grad], work=work)
        return grad

    def get_batch_per_block(num_queries: int, num_keys: int, batch: int, heads: int) -> int:
        return 2 if num_keys <= 128 else 1

    module.__dict__.update(forward=forward, backward=backward, get_batch_per_block=get_batch_per_block)


def fill_rope(module: ModuleType) -> None:
    """Fill a module with rotations of all layouts, and their gradients."""
    for layout in ("", "_cached", "_thd", "_2d"):
        setattr(module, f"forward{layout}", _rotation("apex::fused_rope"))
        setattr(module, f"backward{layout}", _rotation("apex::fused_rope_backward"))


def _rotation(name: str) -> Callable[..., Tensor]:
    def rotate(x: Tensor, *args: Any) -> Tensor:
        out = torch.empty_like(x)
        angles = [value for value in args if isinstance(value, Tensor)]
        record_kernel(name, inputs=[x, *angles], outputs=[out], work=Work())
        return out

    return rotate
