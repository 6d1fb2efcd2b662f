"""`flash_attn.flash_attn_triton`: attention with a bias, where flash_attn is not installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandtable.vgpu.packages.flash_attn import functions

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["flash_attn_func"]


def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, bias: Any = None, causal: bool = False, softmax_scale: float | None = None
) -> Any:
    """Attend as the package's other kernels do; the bias is not read."""
    return functions.flash_attn_func(q, k, v, softmax_scale=softmax_scale, causal=causal)
