"""Layer norm and RMS norm in one kernel, with the addition of a residual where that is fused.

forward   reads x (and the residual), writes y (and the sum) and one or two float32 per row
backward  reads dy, x and the rows' statistics, writes dx and partial sums of the weights' gradients, which
          a second kernel adds up: one row of float32 per multiprocessor
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sandtable.trace.work import Work
from sandtable.vgpu.packages.kernels import record_kernel

__all__ = ["NormSettings", "fused_norm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NormSettings:
    """How a kernel normalises.

    `name` is the kernel's; `is_rms` saves no means. `out_dtype` and `sum_dtype` are those of the result and of the sum
    with the residual, by default the input's. With `returns_sum` the sum is a result, too.
    """

    name: str
    is_rms: bool
    out_dtype: torch.dtype | None = None
    sum_dtype: torch.dtype | None = None
    returns_sum: bool = False


def fused_norm(
    settings: NormSettings, x: Tensor, weight: Tensor | None, bias: Tensor | None = None, residual: Tensor | None = None
) -> Any:
    """Normalise the rows of x, or of x + residual."""
    return _Norm.apply(settings, x, weight, bias, residual)  # type: ignore[no-untyped-call]


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        settings: NormSettings,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        residual: Tensor | None,
    ) -> Any:
        size = x.shape[-1] if weight is None else weight.numel()
        num_rows = x.numel() // max(size, 1)
        sum_dtype = settings.sum_dtype or (x.dtype if residual is None else residual.dtype)
        total = x if residual is None and sum_dtype == x.dtype else torch.empty_like(x, dtype=sum_dtype)
        y = torch.empty_like(x, dtype=settings.out_dtype or x.dtype)
        statistics = [x.new_empty(num_rows, dtype=torch.float32) for _ in range(1 if settings.is_rms else 2)]
        inputs = [tensor for tensor in (x, residual, weight, bias) if tensor is not None]
        outputs = [y, *([] if total is x else [total]), *statistics]
        record_kernel(settings.name, inputs=inputs, outputs=outputs, work=Work(family="normalisation"))
        ctx.save_for_backward(total, *statistics, *(() if weight is None else (weight,)))
        ctx.settings, ctx.x_dtype = settings, x.dtype
        ctx.num_statistics, ctx.bias_dtype = len(statistics), None if bias is None else bias.dtype
        ctx.residual_dtype = None if residual is None else residual.dtype
        return (y, total) if settings.returns_sum else y

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dtotal: Tensor | None = None) -> Any:
        total, *rest = ctx.saved_tensors
        statistics, weights = rest[: ctx.num_statistics], rest[ctx.num_statistics :]
        dx = torch.empty_like(total, dtype=ctx.x_dtype)
        dresidual: Tensor | None = dx
        if ctx.residual_dtype is None:
            dresidual = None
        elif ctx.residual_dtype != ctx.x_dtype:
            dresidual = torch.empty_like(total, dtype=ctx.residual_dtype)
        partial = _partial_sums(weights, has_bias=ctx.bias_dtype is not None)
        read = [tensor for tensor in (dy, total, *statistics, *weights, dtotal) if tensor is not None]
        written = [dx, *([] if dresidual is None or dresidual is dx else [dresidual]), *partial]
        name = f"{ctx.settings.name}_backward"
        record_kernel(name, inputs=read, outputs=written, work=Work(family="normalisation"))
        sums = [rows.sum(0) for rows in partial]
        dweight = sums[0].to(weights[0].dtype).view_as(weights[0]) if weights else None
        dbias = sums[1].to(ctx.bias_dtype) if len(sums) > 1 else None
        return None, dx, dweight, dbias, dresidual


def _partial_sums(weights: list[Tensor], *, has_bias: bool) -> list[Tensor]:
    if not weights:
        return []
    weight = weights[0]
    num_sms = torch.cuda.get_device_properties(weight.device).multi_processor_count
    return [weight.new_empty((num_sms, weight.numel()), dtype=torch.float32) for _ in range(2 if has_bias else 1)]
