"""The public functions of FlashAttention 3, where it is not installed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sandtable.vgpu.packages.flash_attn_3.operators import _flash_attn_backward, _flash_attn_forward

__all__ = [
    "_flash_attn_backward",
    "_flash_attn_forward",
    "flash_attn_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    """The arguments of one call that are not differentiated."""

    softmax_scale: float | None = None
    causal: bool = False
    qv: Tensor | None = None
    q_descale: Tensor | None = None
    k_descale: Tensor | None = None
    v_descale: Tensor | None = None
    window_size: tuple[int, int] = (-1, -1)
    attention_chunk: int = 0
    softcap: float = 0.0
    num_splits: int = 1
    pack_gqa: bool | None = None
    deterministic: bool = False
    sm_margin: int = 0
    return_attn_probs: bool = False
    cu_seqlens_q: Tensor | None = None
    cu_seqlens_k: Tensor | None = None
    max_seqlen_q: int | None = None
    max_seqlen_k: int | None = None
    seqused_q: Tensor | None = None
    seqused_k: Tensor | None = None


def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None, causal: bool = False, **options: Any
) -> Any:
    """Attend: (batch, length, heads, size) each; inputs of 8 bits give bfloat16."""
    settings = _Settings(softmax_scale=softmax_scale, causal=causal, **options)
    return _Attention.apply(settings, q, k, v)  # type: ignore[no-untyped-call]


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    **options: Any,
) -> Any:
    """Attend within sequences laid end to end: (total length, heads, size) each."""
    settings = _Settings(
        softmax_scale=softmax_scale,
        causal=causal,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        seqused_q=seqused_q,
        seqused_k=seqused_k,
        **options,
    )
    return _Attention.apply(settings, q, k, v)  # type: ignore[no-untyped-call]


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    num_heads_q: int | None = None,
    **options: Any,
) -> Any:
    """Attend with all in one tensor: (batch, length, 3, heads, size), or with heads of queries, keys and values."""
    settings = _Settings(softmax_scale=softmax_scale, causal=causal, **options)
    if num_heads_q is None:
        q, k, v = qkv.unbind(-3)
    else:
        num_heads_k = (qkv.shape[2] - num_heads_q) // 2
        q, k, v = torch.split(qkv, [num_heads_q, num_heads_k, num_heads_k], dim=2)
    return _Attention.apply(settings, q, k, v)  # type: ignore[no-untyped-call]


def flash_attn_with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, *_: Any, softmax_scale: Any = None, causal: bool = False, **__: Any
) -> Tensor:
    """Attend to a cache, without gradients."""
    scale = softmax_scale or q.shape[-1] ** -0.5
    return _flash_attn_forward(q, k_cache, v_cache, softmax_scale=scale, is_causal=causal)[0]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, settings: _Settings, q: Tensor, k: Tensor, v: Tensor) -> Any:
        scale = settings.softmax_scale
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        out, lse, *_ = _flash_attn_forward(
            q,
            k,
            v,
            q_v=settings.qv,
            cu_seqlens_q=settings.cu_seqlens_q,
            cu_seqlens_k=settings.cu_seqlens_k,
            seqused_q=settings.seqused_q,
            seqused_k=settings.seqused_k,
            max_seqlen_q=settings.max_seqlen_q,
            max_seqlen_k=settings.max_seqlen_k,
            q_descale=settings.q_descale,
            k_descale=settings.k_descale,
            v_descale=settings.v_descale,
            softmax_scale=scale,
            is_causal=settings.causal,
            window_size_left=settings.window_size[0],
            window_size_right=settings.window_size[1],
            attention_chunk=settings.attention_chunk,
            softcap=settings.softcap,
            num_splits=settings.num_splits,
            pack_gqa=settings.pack_gqa,
            sm_margin=settings.sm_margin,
        )
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.settings, ctx.scale = settings, scale
        if not settings.return_attn_probs:
            return out
        ctx.mark_non_differentiable(lse)  # only what is returned: torch.compile refuses others
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor, *_: Any) -> Any:
        q, k, v, out, lse = ctx.saved_tensors
        settings = ctx.settings
        dq, dk, dv = map(torch.empty_like, (q, k, v))
        _flash_attn_backward(
            dout,
            q,
            k,
            v,
            out,
            lse,
            cu_seqlens_q=settings.cu_seqlens_q,
            cu_seqlens_k=settings.cu_seqlens_k,
            sequed_q=settings.seqused_q,
            sequed_k=settings.seqused_k,
            max_seqlen_q=settings.max_seqlen_q,
            max_seqlen_k=settings.max_seqlen_k,
            dq=dq,
            dk=dk,
            dv=dv,
            softmax_scale=ctx.scale,
            is_causal=settings.causal,
            window_size_left=settings.window_size[0],
            window_size_right=settings.window_size[1],
            softcap=settings.softcap,
            deterministic=settings.deterministic,
            sm_margin=settings.sm_margin,
        )
        return None, dq, dk, dv
