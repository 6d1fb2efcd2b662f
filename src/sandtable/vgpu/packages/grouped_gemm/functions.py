"""`grouped_gemm.ops`, where it is not installed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sandtable.vgpu.packages.grouped_gemm import compiled

__all__ = ["gmm", "permute", "sinkhorn", "unpermute"]

sinkhorn = compiled.sinkhorn


def gmm(a: Tensor, b: Tensor, batch_sizes: Tensor, trans_b: bool = False) -> Tensor:
    """Multiply the rows of each group with its matrix."""
    result: Tensor = _GroupedProduct.apply(a, b, batch_sizes, trans_b)  # type: ignore[no-untyped-call]
    return result


def permute(input_act: Tensor, indices: Tensor, num_out_tokens: int | None = None, max_token_num: int = 0) -> Any:
    """Sort tokens by expert; return them and where they went."""
    return _Permutation.apply(input_act, indices, num_out_tokens or 0)  # type: ignore[no-untyped-call]


def unpermute(input_act: Tensor, row_id_map: Tensor, probs: Tensor | None = None) -> Tensor:
    """Put tokens back, weighed by probabilities."""
    result: Tensor = _Unpermutation.apply(input_act, row_id_map, probs)  # type: ignore[no-untyped-call]
    return result


class _GroupedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, batch_sizes: Tensor, trans_b: bool) -> Tensor:
        ctx.save_for_backward(a, b, batch_sizes)
        ctx.trans_b = trans_b
        out = a.new_empty(a.shape[0], b.shape[1] if trans_b else b.shape[2])
        compiled.gmm(a, b, out, batch_sizes, False, trans_b)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        a, b, batch_sizes = ctx.saved_tensors
        grad = grad.contiguous()
        da, db = None, None
        if ctx.needs_input_grad[0]:
            da = torch.empty_like(a)
            compiled.gmm(grad, b, da, batch_sizes, False, not ctx.trans_b)
        if ctx.needs_input_grad[1]:
            db = torch.empty_like(b)
            first, second = (grad, a) if ctx.trans_b else (a, grad)
            compiled.gmm(first, second, db, batch_sizes, True, False)
        return da, db, None, None


class _Permutation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, indices: Tensor, num_out_tokens: int) -> Any:
        rows, places, _ = compiled.permute(x, indices, num_out_tokens, [], 0)
        ctx.save_for_backward(places)
        ctx.num_topk = 1 if indices.dim() == 1 else indices.shape[1]
        ctx.mark_non_differentiable(places)
        return rows, places

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> Any:
        (places,) = ctx.saved_tensors
        return compiled.unpermute(grad.contiguous(), places, None, 0, ctx.num_topk), None, None  # type: ignore[arg-type]


class _Unpermutation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, row_id_map: Tensor, probs: Tensor | None) -> Tensor:
        num_topk = 1 if probs is None else probs.shape[1]
        probs = x.new_ones(row_id_map.numel(), 1, dtype=torch.float32) if probs is None else probs
        ctx.save_for_backward(x, row_id_map, probs)
        return compiled.unpermute(x, row_id_map, probs, 0, num_topk)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, row_id_map, probs = ctx.saved_tensors
        dx, dprobs = compiled.unpermute_bwd(grad.contiguous(), x, row_id_map, probs)
        return dx, None, dprobs if ctx.needs_input_grad[2] else None
