"""Losses of liger-kernel, where it is not installed.

The cross entropy computes its gradient in the forward pass, in the place of the logits. The fused one also multiplies
with the output layer, for some rows at a time, so that all logits never exist: a chunk of them is about as large as the
whole input.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sandtable.trace.work import Work
from sandtable.vgpu.packages.kernels import record_kernel

__all__ = [
    "LigerCrossEntropyLoss",
    "LigerFusedLinearCrossEntropyLoss",
    "liger_cross_entropy",
    "liger_fused_linear_cross_entropy",
]


class LigerCrossEntropyLoss(nn.Module):
    """Cross entropy of logits (tokens, vocabulary)."""

    def __init__(self, ignore_index: int = -100, *_: Any, reduction: str = "mean", **__: Any) -> None:
        super().__init__()
        self.ignore_index, self.reduction = ignore_index, reduction

    def forward(self, _input: Tensor, target: Tensor) -> Tensor:
        return liger_cross_entropy(_input, target, reduction=self.reduction)


class LigerFusedLinearCrossEntropyLoss(LigerCrossEntropyLoss):
    """Output layer and cross entropy in one."""

    def forward(self, lin_weight: Tensor, _input: Tensor, target: Tensor, bias: Tensor | None = None) -> Tensor:  # type: ignore[override]
        return liger_fused_linear_cross_entropy(_input, lin_weight, target, bias, reduction=self.reduction)


def liger_cross_entropy(input: Tensor, target: Tensor, *_: Any, reduction: str = "mean", **__: Any) -> Tensor:  # noqa: A002
    """Return the loss of the rows, reduced."""
    result: Tensor = _CrossEntropy.apply(input, target, reduction)  # type: ignore[no-untyped-call]
    return result


def liger_fused_linear_cross_entropy(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *_: Any,
    reduction: str = "mean",
    **__: Any,
) -> Tensor:
    """Return the loss of input (tokens, width) multiplied with the output layer's weight (vocabulary, width)."""
    result: Tensor = _FusedLinearCrossEntropy.apply(input, weight, target, bias, reduction)  # type: ignore[no-untyped-call]
    return result


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, reduction: str) -> Tensor:
        losses = _row_losses(logits, target)
        ctx.save_for_backward(logits.detach())
        return _reduced(losses, reduction)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (gradient,) = ctx.saved_tensors
        return gradient, None, None


class _FusedLinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, reduction: str) -> Tensor:
        losses = x.new_empty(len(x), dtype=torch.float32)
        dx, dweight = torch.zeros_like(x), torch.zeros_like(weight)
        dbias = None if bias is None else torch.zeros_like(bias)
        num_rows = _rows_at_a_time(len(x), x.shape[1], len(weight))
        for start in range(0, len(x), num_rows):
            rows = slice(start, start + num_rows)
            logits = x[rows] @ weight.t()
            if bias is not None:
                logits += bias
            losses[rows] = _row_losses(logits, target[rows])
            dx[rows] = logits @ weight
            torch.addmm(dweight, logits.t(), x[rows], out=dweight)
            if dbias is not None:
                dbias += logits.sum(0)
        ctx.save_for_backward(dx.detach(), dweight.detach(), *(() if dbias is None else (dbias.detach(),)))
        return _reduced(losses, reduction)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        dx, dweight, *dbias = ctx.saved_tensors
        return dx, dweight, None, dbias[0] if dbias else None, None


def _row_losses(logits: Tensor, target: Tensor) -> Tensor:
    """Read the logits for the sum and again for the gradient, which takes their place."""
    losses = logits.new_empty(len(logits), dtype=torch.float32)
    work = Work(family="normalisation", bytes_read=2 * logits.nbytes)
    record_kernel("liger_kernel::cross_entropy", inputs=[logits, target], outputs=[losses, logits.detach()], work=work)
    return losses


def _rows_at_a_time(num_rows: int, width: int, vocabulary: int) -> int:
    num_parts = -(-vocabulary // width)
    rows = -(-num_rows // num_parts)
    return max(1, min(1 << max(rows - 1, 0).bit_length(), num_rows))


def _reduced(losses: Tensor, reduction: str) -> Tensor:
    return losses if reduction == "none" else losses.sum() if reduction == "sum" else losses.mean()
