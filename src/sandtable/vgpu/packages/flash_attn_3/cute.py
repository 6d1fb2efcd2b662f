"""`flash_attn.cute` (FlashAttention 4): each function returns the result and the rows' log sums, or None for these."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sandtable.vgpu.packages.flash_attn_3 import functions

__all__ = ["flash_attn_func", "flash_attn_varlen_func"]


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (None, None),
    softcap: float = 0.0,
    deterministic: bool = False,
    return_lse: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attend: (batch, length, heads, size) each."""
    result = functions.flash_attn_func(
        q,
        k,
        v,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=_window(window_size),
        softcap=softcap,
        deterministic=deterministic,
        return_attn_probs=return_lse,
    )
    return _pair(result)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    page_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (None, None),
    softcap: float = 0.0,
    deterministic: bool = False,
    return_lse: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attend within sequences laid end to end: (total length, heads, size) each."""
    result = functions.flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        _longest(q, cu_seqlens_q) if max_seqlen_q is None else max_seqlen_q,
        _longest(k, cu_seqlens_k) if max_seqlen_k is None else max_seqlen_k,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=_window(window_size),
        softcap=softcap,
        deterministic=deterministic,
        return_attn_probs=return_lse,
    )
    return _pair(result)


def _window(size: tuple[int | None, int | None]) -> tuple[int, int]:
    left, right = (-1 if side is None else side for side in size)
    return left, right


def _longest(tokens: Tensor, offsets: Tensor) -> int:
    """Take sequences to be equally long where the longest is not given."""
    return -(-len(tokens) // max(len(offsets) - 1, 1))


def _pair(result: Any) -> tuple[Tensor, Tensor | None]:
    return (result[0], result[1]) if isinstance(result, tuple) else (result, None)
