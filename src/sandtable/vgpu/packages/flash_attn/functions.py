"""The public functions of flash_attn, where it is not installed.

They save for the backward pass what flash_attn saves: queries, keys, values, the output and a float32 per row. Packed
inputs get one packed gradient. Head sizes are padded to a multiple of 8, as there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sandtable.vgpu.packages.flash_attn import compiled, operators

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lengths:
    """Where sequences that are laid end to end begin, and the longest."""

    cu_q: Tensor
    cu_k: Tensor
    max_q: int
    max_k: int
    block_table: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    """The arguments of one call that are not differentiated; None for sequences of one length."""

    dropout_p: float = 0.0
    softmax_scale: float | None = None
    causal: bool = False
    window_size: tuple[int, int] = (-1, -1)
    softcap: float = 0.0
    alibi_slopes: Tensor | None = None
    deterministic: bool = False
    return_attn_probs: bool = False
    lengths: _Lengths | None = None


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, *args: Any, **options: Any) -> Any:
    """Attend: (batch, length, heads, size) each; keys and values may have fewer heads."""
    return _Attention.apply(_settings(None, dropout_p, *args, **options), q, k, v)  # type: ignore[no-untyped-call]


def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, dropout_p: float = 0.0, *args: Any, **options: Any) -> Any:
    """Attend with keys and values in one tensor: (batch, length, 2, heads, size)."""
    return _Attention.apply(_settings(None, dropout_p, *args, **options), q, kv)  # type: ignore[no-untyped-call]


def flash_attn_qkvpacked_func(qkv: Tensor, dropout_p: float = 0.0, *args: Any, **options: Any) -> Any:
    """Attend with all in one tensor: (batch, length, 3, heads, size)."""
    return _Attention.apply(_settings(None, dropout_p, *args, **options), qkv)  # type: ignore[no-untyped-call]


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    *args: Any,
    block_table: Tensor | None = None,
    **options: Any,
) -> Any:
    """Attend within sequences laid end to end: (total length, heads, size) each."""
    lengths = _Lengths(
        cu_q=cu_seqlens_q, cu_k=cu_seqlens_k, max_q=max_seqlen_q, max_k=max_seqlen_k, block_table=block_table
    )
    return _Attention.apply(_settings(lengths, dropout_p, *args, **options), q, k, v)  # type: ignore[no-untyped-call]


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    *args: Any,
    **options: Any,
) -> Any:
    """Attend within sequences laid end to end, with keys and values in one tensor: (total, 2, heads, size)."""
    lengths = _Lengths(cu_q=cu_seqlens_q, cu_k=cu_seqlens_k, max_q=max_seqlen_q, max_k=max_seqlen_k)
    return _Attention.apply(_settings(lengths, dropout_p, *args, **options), q, kv)  # type: ignore[no-untyped-call]


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = 0.0, *args: Any, **options: Any
) -> Any:
    """Attend within sequences laid end to end, with all in one tensor: (total, 3, heads, size)."""
    lengths = _Lengths(cu_q=cu_seqlens, cu_k=cu_seqlens, max_q=max_seqlen, max_k=max_seqlen)
    return _Attention.apply(_settings(lengths, dropout_p, *args, **options), qkv)  # type: ignore[no-untyped-call]


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    *_: Any,
    block_table: Tensor | None = None,
    return_softmax_lse: bool = False,
    **__: Any,
) -> Any:
    """Attend to a cache, without gradients."""
    out, lse = compiled.fwd_kvcache(q, k_cache, v_cache, k, v, None, None, None, None, block_table)
    return (out, lse) if return_softmax_lse else out


_ORDER = (
    "softmax_scale",
    "causal",
    "window_size",
    "softcap",
    "alibi_slopes",
    "deterministic",
    "return_attn_probs",
)
"""The arguments after `dropout_p`, alike in all functions."""


def _settings(lengths: _Lengths | None, dropout_p: float, *args: Any, **options: Any) -> _Settings:
    given = dict(zip(_ORDER, args, strict=False), **options)
    return _Settings(lengths=lengths, dropout_p=dropout_p, **given)


class _Attention(torch.autograd.Function):
    """Attention on one, two or three tensors: packed with three, packed with two, or separate."""

    @staticmethod
    def forward(ctx: Any, settings: _Settings, *tensors: Tensor) -> Any:
        q, k, v = [_padded(tensor.detach()) for tensor in _separate(tensors)]
        size = tensors[0].shape[-1]
        scale = size**-0.5 if settings.softmax_scale is None else settings.softmax_scale
        out, lse, probabilities, rng_state = _attend(settings, scale, q, k, v)
        ctx.save_for_backward(q, k, v, out, lse, rng_state)
        ctx.settings, ctx.scale, ctx.num_tensors = settings, scale, len(tensors)
        result = out[..., :size]
        return (result, lse, probabilities) if settings.return_attn_probs else result

    @staticmethod
    def backward(ctx: Any, dout: Tensor, *_: Any) -> Any:
        q, k, v, out, lse, rng_state = ctx.saved_tensors
        size = dout.shape[-1]
        grads = _empty_gradients(ctx.num_tensors, q, k, v)
        _differentiate(ctx.settings, ctx.scale, (_padded(dout), q, k, v, out, lse), _separate(grads), rng_state)
        return None, *(grad[..., :size] for grad in grads)


def _attend(settings: _Settings, scale: float, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    returns_softmax = settings.return_attn_probs and settings.dropout_p > 0
    common = (settings.dropout_p, scale, settings.causal, *settings.window_size, settings.softcap)
    lengths = settings.lengths
    if lengths is None:
        return operators._flash_attn_forward(q, k, v, *common, settings.alibi_slopes, returns_softmax)
    places = (lengths.cu_q, lengths.cu_k, lengths.max_q, lengths.max_k)
    last = (settings.alibi_slopes, returns_softmax, lengths.block_table)
    return operators._flash_attn_varlen_forward(q, k, v, *places, *common, *last)


def _differentiate(
    settings: _Settings,
    scale: float,
    saved: tuple[Tensor, ...],
    grads: tuple[Tensor, ...],
    rng_state: Tensor,
) -> None:
    common = (settings.dropout_p, scale, settings.causal, *settings.window_size, settings.softcap)
    last = (settings.alibi_slopes, settings.deterministic, rng_state)
    lengths = settings.lengths
    if lengths is None:
        operators._flash_attn_backward(*saved, *grads, *common, *last)
    else:
        places = (lengths.cu_q, lengths.cu_k, lengths.max_q, lengths.max_k)
        operators._flash_attn_varlen_backward(*saved, *grads, *places, *common, *last)


def _separate(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return queries, keys and values, as views of what is packed."""
    *separate, last = tensors
    return (*separate, *last.unbind(-3)) if len(separate) < 2 else tensors


def _empty_gradients(num_tensors: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    if num_tensors == 3:
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    if num_tensors == 2:
        return torch.empty_like(q), k.new_empty((*k.shape[:-2], 2, *k.shape[-2:]))
    return (q.new_empty((*q.shape[:-2], 3, *q.shape[-2:])),)


def _padded(tensor: Tensor) -> Tensor:
    """Return the tensor with a head size that is a multiple of 8."""
    excess = tensor.shape[-1] % 8
    return torch.nn.functional.pad(tensor, [0, 8 - excess]) if excess else tensor
