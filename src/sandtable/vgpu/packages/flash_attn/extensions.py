"""flash_attn's other compiled modules, which its releases up to 2.5 bring and which scripts call themselves.

rotary_emb           rotary embedding of the two halves of each head, in one kernel
xentropy_cuda_lib    cross entropy: one kernel forward, one backward, which may write over the logits
dropout_layer_norm   dropout, addition of a residual and layer or RMS norm in one kernel; the backward pass adds up the
                     weights' gradients in a second one
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from sandtable.trace.work import Work
from sandtable.vgpu.packages.kernels import record_kernel

__all__ = ["fill_cross_entropy", "fill_norms", "fill_rotary"]


def fill_rotary(module: ModuleType) -> None:
    """Fill `rotary_emb`."""

    def apply_rotary(
        x1: Tensor, x2: Tensor, cos: Tensor, sin: Tensor, out1: Tensor, out2: Tensor, conj: bool = False
    ) -> None:
        name = "flash_attn::apply_rotary"
        record_kernel(name, inputs=[x1, x2, cos, sin], outputs=[out1, out2], work=Work())

    module.__dict__.update(apply_rotary=apply_rotary)


def fill_cross_entropy(module: ModuleType) -> None:
    """Fill `xentropy_cuda_lib`."""

    def forward(logits: Tensor, labels: Tensor, smoothing: float = 0.0, total_classes: int = -1) -> list[Tensor]:
        outputs = [logits.new_empty(len(logits), dtype=torch.float32) for _ in range(2)]
        work = Work(family="normalisation")
        record_kernel("flash_attn::xentropy", inputs=[logits, labels], outputs=outputs, work=work)
        return outputs

    def backward(
        dlosses: Tensor, logits: Tensor, sums: Tensor, labels: Tensor, smoothing: float = 0.0, inplace: bool = False,
        total_classes: int = -1,
    ) -> Tensor:  # fmt: skip
        dlogits = logits if inplace else torch.empty_like(logits)
        inputs = [dlosses, logits, sums, labels]
        record_kernel("flash_attn::xentropy_backward", inputs=inputs, outputs=[dlogits], work=Work())
        return dlogits

    module.__dict__.update(forward=forward, backward=backward)


def fill_norms(module: ModuleType) -> None:
    """Fill `dropout_layer_norm`."""
    module.__dict__.update(dropout_add_ln_fwd=_norm, dropout_add_ln_bwd=_norm_backward)


def _norm(
    x0: Tensor, residual: Tensor | None, gamma: Tensor, beta: Tensor | None, rowscale: Tensor | None,
    colscale: Tensor | None, x0_subset: Tensor | None, z_subset: Tensor | None, dropout_p: float, epsilon: float,
    rowscale_const: float = 1.0, z_numrows: int = 0, generator: Any = None, residual_in_fp32: bool = False,
    is_rms_norm: bool = False,
) -> list[Tensor | None]:  # fmt: skip
    """Return the norm, the sum that was normalised if it is not x0 itself, the dropout's mask, means and deviations."""
    own_dtype = torch.float32 if residual_in_fp32 else x0.dtype
    sum_dtype = own_dtype if residual is None else residual.dtype
    num_rows = len(x0 if x0_subset is None else x0_subset)
    shape = (num_rows, x0.shape[-1])
    scales = [scale for scale in (rowscale, colscale, x0_subset) if scale is not None]
    has_sum = residual is not None or dropout_p > 0 or bool(scales) or sum_dtype != x0.dtype
    z = x0.new_empty((z_numrows or num_rows, x0.shape[-1]))
    total = x0.new_empty(shape, dtype=sum_dtype) if has_sum else None
    mask = x0.new_empty(x0.shape, dtype=torch.uint8) if dropout_p > 0 else None
    rows = [x0.new_empty(num_rows, dtype=torch.float32) for _ in range(2)]
    _record("", is_rms_norm, inputs=[x0, residual, gamma, beta, *scales, z_subset], outputs=[z, total, mask, *rows])
    return [z, total, mask, *rows]


def _norm_backward(
    dz: Tensor, dx: Tensor | None, x: Tensor, x0: Tensor | None, mask: Tensor | None, mu: Tensor, rsigma: Tensor,
    gamma: Tensor, rowscale: Tensor | None, colscale: Tensor | None, x0_subset: Tensor | None,
    z_subset: Tensor | None, dropout_p: float, rowscale_const: float = 1.0, x0_numrows: int = 0,
    has_residual: bool = False, is_rms_norm: bool = False,
) -> list[Tensor | None]:  # fmt: skip
    """Return the gradients of x0, the residual, gamma, beta and, if there is one, colscale, with their partial sums."""
    dx0 = dz.new_empty((x0_numrows or len(x), x.shape[-1]))
    dresidual = torch.empty_like(x) if has_residual else None
    weights = [gamma, gamma] if colscale is None else [gamma, gamma, colscale]
    num_sms = torch.cuda.get_device_properties(x.device).multi_processor_count
    partial = [weight.new_empty((num_sms, weight.numel()), dtype=torch.float32) for weight in weights]
    grads = [torch.empty_like(weight) for weight in weights]
    inputs = [dz, dx, x, x0, mask, mu, rsigma, gamma, rowscale, colscale, x0_subset, z_subset]
    _record("_backward", is_rms_norm, inputs=inputs, outputs=[dx0, dresidual, *partial])
    _record("_backward_finalize", is_rms_norm, inputs=[*partial], outputs=[*grads])
    return [dx0, dresidual, *grads[:2], *partial[:2], *grads[2:], *partial[2:]]


def _record(suffix: str, is_rms: bool, *, inputs: list[Tensor | None], outputs: list[Tensor | None]) -> None:
    record_kernel(
        f"flash_attn::dropout_add_{'rms' if is_rms else 'layer'}_norm{suffix}",
        inputs=[tensor for tensor in inputs if tensor is not None],
        outputs=[tensor for tensor in outputs if tensor is not None],
        work=Work(family="normalisation"),
    )
