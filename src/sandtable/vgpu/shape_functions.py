"""Shape functions: the output shapes of operators for which torch has no Meta kernel.

Each takes the operator's arguments with tensors on the meta device and returns meta tensors. Operators whose
shape depends on values come here only when the values are unknown: then every element counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

__all__ = ["convolution_format", "install"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_FUNCTIONS: dict[str, Callable[..., Any]] = {}


def install(core: ModuleType) -> None:
    """Register all of them with the core."""
    for name, function in _FUNCTIONS.items():
        core.register_shape(name, function)


def _shape_of(*names: str) -> Callable[[_Function], _Function]:
    def add(function: _Function) -> _Function:
        _FUNCTIONS.update({f"aten::{name}": function for name in names})
        return function

    return add


def _like(tensor: Tensor, *sizes: int, dtype: torch.dtype | None = None) -> Tensor:
    return torch.empty(sizes, dtype=dtype or tensor.dtype, device="meta")


# ---- matrix products: torch's meta kernels word their errors differently from the real card ----


@_shape_of("mm")
def _mm(a: Tensor, b: Tensor) -> Tensor:
    if a.dim() != 2 or b.dim() != 2:
        raise RuntimeError(f"{'self' if a.dim() != 2 else 'mat2'} must be a matrix")
    if a.shape[1] != b.shape[0]:
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({a.shape[0]}x{a.shape[1]} and {b.shape[0]}x{b.shape[1]})"
        )
    if a.dtype != b.dtype:
        raise RuntimeError(f"expected m1 and m2 to have the same dtype, but got: {a.dtype} != {b.dtype}")
    return _like(a, a.shape[0], b.shape[1])


# ---- convolutions: cuDNN answers in channels-last where the input or the weight is ----


def convolution_format(x: Tensor, weight: Tensor) -> torch.memory_format:
    """Return the memory format of a convolution's results."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    wanted = formats.get(x.dim(), torch.contiguous_format)
    is_wanted = any(suggest_memory_format(tensor) == wanted for tensor in (x, weight))
    return wanted if is_wanted else torch.contiguous_format


@_shape_of("convolution")
def _convolution(x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    out: Tensor = torch.ops.aten.convolution.default(x, weight, *rest)
    return out.contiguous(memory_format=convolution_format(x, weight))


@_shape_of("convolution_backward")
def _convolution_backward(grad: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> Sequence[Tensor | None]:
    layout = convolution_format(x, weight)
    grad_x, grad_weight, grad_bias = torch.ops.aten.convolution_backward.default(grad, x, weight, *rest)
    return (
        None if grad_x is None else grad_x.contiguous(memory_format=layout),
        None if grad_weight is None else grad_weight.contiguous(memory_format=layout),
        grad_bias,
    )


# ---- values decide ----


@_shape_of("nonzero")
def _nonzero(x: Tensor) -> Tensor:
    return _like(x, x.numel(), x.dim(), dtype=torch.long)


@_shape_of("masked_select")
def _masked_select(x: Tensor, mask: Tensor) -> Tensor:
    return _like(x, torch.logical_and(x, mask).numel())


@_shape_of("_unique2")
def _unique(x: Tensor, is_sorted: bool, inverse: bool, counts: bool) -> tuple[Tensor, Tensor, Tensor]:
    return (
        _like(x, x.numel()),
        _like(x, *(x.shape if inverse else (0,)), dtype=torch.long),
        _like(x, x.numel() if counts else 0, dtype=torch.long),
    )


@_shape_of("unique_consecutive")
def _unique_consecutive(x: Tensor, inverse: bool, counts: bool, dim: int | None) -> tuple[Tensor, Tensor, Tensor]:
    if dim is None:
        return _unique(x, True, inverse, counts)
    return _unique_dim(x, dim, True, inverse, counts)


@_shape_of("unique_dim", "unique_dim_consecutive")
def _unique_dim(x: Tensor, dim: int, is_sorted: bool, inverse: bool, counts: bool) -> tuple[Tensor, Tensor, Tensor]:
    size = x.shape[dim]
    return (
        _like(x, *x.shape),
        _like(x, size if inverse else 0, dtype=torch.long),
        _like(x, size if counts else 0, dtype=torch.long),
    )


@_shape_of("bincount")
def _bincount(x: Tensor, weights: Tensor | None, minlength: int) -> Tensor:
    dtype = torch.long if weights is None else torch.double if weights.dtype != torch.float else torch.float
    return _like(x, max(minlength, 1), dtype=dtype)


@_shape_of("repeat_interleave.Tensor")
def _repeat_interleave(repeats: Tensor, output_size: int | None) -> Tensor:
    return _like(repeats, repeats.numel() if output_size is None else output_size)


# ---- synchronised batch normalisation ----


@_shape_of("batch_norm_stats")
def _batch_norm_stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    kind = torch.float if x.dtype in (torch.half, torch.bfloat16) else x.dtype
    return _like(x, x.shape[1], dtype=kind), _like(x, x.shape[1], dtype=kind)


@_shape_of("batch_norm_gather_stats", "batch_norm_gather_stats_with_counts")
def _batch_norm_gather(x: Tensor, mean: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _like(mean, mean.shape[1]), _like(mean, mean.shape[1])


@_shape_of("batch_norm_elemt")
def _batch_norm_elemt(x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x)


@_shape_of("batch_norm_backward_reduce")
def _batch_norm_backward_reduce(
    grad: Tensor, x: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None, *needs: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    channels = x.shape[1]
    need_x, need_w, need_b = needs
    total = _like(mean, channels) if need_x else None
    like = mean if weight is None else weight
    return (
        total,
        None if total is None else total.clone(),
        _like(like, channels) if need_w else None,
        _like(like, channels) if need_b else None,
    )


@_shape_of("batch_norm_backward_elemt")
def _batch_norm_backward_elemt(grad: Tensor, x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x)


# ---- recurrent cells ----


@_shape_of("_thnn_fused_gru_cell")
def _gru_cell(input_gates: Tensor, hidden_gates: Tensor, hidden: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(hidden), _like(hidden, hidden.shape[0], hidden.shape[1] * 5)


@_shape_of("_thnn_fused_gru_cell_backward")
def _gru_cell_backward(grad: Tensor, workspace: Tensor, has_bias: bool) -> Sequence[Tensor | None]:
    batch, hidden = grad.shape
    bias = _like(grad, 3 * hidden) if has_bias else None
    gates = _like(grad, batch, 3 * hidden)
    return (gates, gates.clone(), torch.empty_like(grad), bias, None if bias is None else bias.clone())


# ---- losses and distributions ----


@_shape_of("_ctc_loss_backward", "_ctc_loss_backward.Tensor")
def _ctc_loss_backward(grad: Tensor, log_probs: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(log_probs)


@_shape_of("_sample_dirichlet", "_standard_gamma")
def _sample(concentration: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(concentration)


@_shape_of("_standard_gamma_grad", "binomial")
def _sample_of_two(first: Tensor, second: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(first)


@_shape_of("_dirichlet_grad")
def _dirichlet_grad(x: Tensor, alpha: Tensor, total: Tensor) -> Tensor:
    return torch.empty_like(x)


@_shape_of("linalg_lstsq.out")
def _lstsq(a: Tensor, b: Tensor, rcond: Any, driver: Any, *outputs: Tensor) -> tuple[Tensor, ...]:
    solution, residuals, rank, singular_values = outputs
    is_vector = b.dim() == a.dim() - 1
    solution.resize_((*a.shape[:-2], a.shape[-1], *(() if is_vector else b.shape[-1:])))
    if a.shape[-2] > a.shape[-1] and not is_vector:
        residuals.resize_((*a.shape[:-2], b.shape[-1]))
    return solution, residuals, rank, singular_values
