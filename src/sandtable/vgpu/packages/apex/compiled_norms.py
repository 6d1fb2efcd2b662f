"""`fused_layer_norm_cuda` and `fast_layer_norm`: compiled norms, for apex's own Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sandtable.trace.work import Work
from sandtable.vgpu.packages.kernels import record_kernel

__all__ = [
    "backward",
    "backward_affine",
    "forward",
    "forward_affine",
    "forward_affine_mixed_dtypes",
    "ln_bwd",
    "ln_fwd",
    "rms_backward",
    "rms_backward_affine",
    "rms_forward",
    "rms_forward_affine",
    "rms_forward_affine_mixed_dtypes",
]

_PARTIAL_ROWS = 16
"""Rows of partial sums of the weights' gradients (csrc/layer_norm_cuda_kernel.cu)."""


def _forward(*, is_rms: bool, is_mixed: bool = False) -> Callable[..., tuple[Tensor, ...]]:
    def norm(x: Tensor, normalized_shape: Sequence[int], *weights_and_eps: Any) -> tuple[Tensor, ...]:
        weights = [value for value in weights_and_eps if isinstance(value, Tensor)]
        num_rows = x.numel() // max(torch.Size(normalized_shape).numel(), 1)
        y = torch.empty_like(x, dtype=weights[0].dtype if is_mixed else x.dtype)
        rows = [x.new_empty(num_rows, dtype=torch.float32) for _ in range(1 if is_rms else 2)]
        name = "apex::rms_norm" if is_rms else "apex::layer_norm"
        record_kernel(name, inputs=[x, *weights], outputs=[y, *rows], work=Work(family="normalisation"))
        return y, *rows

    return norm


def _backward(*, is_rms: bool) -> Callable[..., Any]:
    def differentiate(dy: Tensor, *args: Any) -> Any:
        """Arguments: the rows' statistics, the input or the output, the shape, weights, epsilon."""
        rows, rest = args[: 1 if is_rms else 2], args[1 if is_rms else 2 :]
        x, _, *others = rest
        weights = [value for value in others if isinstance(value, Tensor)]
        dx = torch.empty_like(x)
        partial = [weight.new_empty((_PARTIAL_ROWS, *weight.shape), dtype=torch.float32) for weight in weights]
        name = "apex::rms_norm_backward" if is_rms else "apex::layer_norm_backward"
        saved = [value for value in (dy, *rows, x, *weights) if value is not None]
        record_kernel(name, inputs=saved, outputs=[dx, *partial], work=Work(family="normalisation"))
        if not weights:
            return dx
        return dx, *(rows.sum(0).to(weight.dtype) for rows, weight in zip(partial, weights, strict=True))

    return differentiate


forward = forward_affine = _forward(is_rms=False)
forward_affine_mixed_dtypes = _forward(is_rms=False, is_mixed=True)
rms_forward = rms_forward_affine = _forward(is_rms=True)
rms_forward_affine_mixed_dtypes = _forward(is_rms=True, is_mixed=True)
backward = backward_affine = _backward(is_rms=False)
rms_backward = rms_backward_affine = _backward(is_rms=True)


def ln_fwd(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> tuple[Tensor, ...]:
    """Normalise, as `fast_layer_norm`."""
    return forward_affine(x, gamma.shape, gamma, beta, epsilon)


def ln_bwd(dz: Tensor, x_or_z: Tensor, mu: Tensor, rsigma: Tensor, gamma: Tensor, beta: Any, *_: Any) -> Any:
    """Differentiate, as `fast_layer_norm`; it also returns its partial sums."""
    return (*backward_affine(dz, mu, rsigma, x_or_z, gamma.shape, gamma, gamma, 0.0), None, None)
