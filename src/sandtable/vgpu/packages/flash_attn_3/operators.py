"""Operators of FlashAttention 3, with their schemas, and the memory around the backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["_flash_attn_backward", "_flash_attn_forward"]

_FORWARD = (
    "fwd(Tensor q, Tensor k, Tensor v, Tensor(k_new!)? k_new=None, Tensor(v_new!)? v_new=None, Tensor? q_v=None, "
    "Tensor(out!)? out=None, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, Tensor? cu_seqlens_k_new=None, "
    "Tensor? seqused_q=None, Tensor? seqused_k=None, int? max_seqlen_q=None, int? max_seqlen_k=None, "
    "Tensor? page_table=None, Tensor? kv_batch_idx=None, Tensor? leftpad_k=None, Tensor? rotary_cos=None, "
    "Tensor? rotary_sin=None, Tensor? seqlens_rotary=None, Tensor? q_descale=None, Tensor? k_descale=None, "
    "Tensor? v_descale=None, float? softmax_scale=None, bool is_causal=False, int window_size_left=-1, "
    "int window_size_right=-1, int attention_chunk=0, float softcap=0., bool is_rotary_interleaved=False, "
    "Tensor? scheduler_metadata=None, int num_splits=0, bool? pack_gqa=None, int sm_margin=0) "
    "-> (Tensor, Tensor, Tensor, Tensor)"
)
_BACKWARD = (
    "bwd(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, Tensor(dq!)? dq=None, "
    "Tensor(dk!)? dk=None, Tensor(dv!)? dv=None, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, "
    "Tensor? seqused_q=None, Tensor? seqused_k=None, int? max_seqlen_q=None, int? max_seqlen_k=None, "
    "float? softmax_scale=None, bool is_causal=False, int window_size_left=-1, int window_size_right=-1, "
    "float softcap=0., bool deterministic=False, int sm_margin=0) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_HEAD_SIZES = (64, 96, 128, 192, 256)
_BLOCK = 128
"""Queries and keys per block of the backward pass, to which it rounds lengths."""

_library: Any = torch.library.Library("flash_attn_3", "FRAGMENT")  # type: ignore[no-untyped-call]


def _flash_attn_forward(q: Tensor, k: Tensor, v: Tensor, *args: Any, **options: Any) -> tuple[Tensor, ...]:
    """Return the output, a float32 per row, and two empty tensors."""
    if "causal" in options:
        options["is_causal"] = options.pop("causal")
    for name, other in (("qv", "q_v"), ("out_", "out"), ("rotary_interleaved", "is_rotary_interleaved")):
        if name in options:
            options[other] = options.pop(name)
    q, k = [x if x.stride(-1) == 1 else x.contiguous() for x in (q, k)]  # Dynamo 2.15 cannot trace a generator
    result: tuple[Tensor, ...] = torch.ops.flash_attn_3.fwd(q, k, v, *args, **options)
    return result


def _flash_attn_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    sequed_q: Tensor | None = None,
    sequed_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dq: Tensor | None = None,
    dk: Tensor | None = None,
    dv: Tensor | None = None,
    *args: Any,
    **options: Any,
) -> Tensor:
    """Write the gradients; return the rows' sums of gradient times output."""
    dout, q, k, v, out = [x if x.stride(-1) == 1 else x.contiguous() for x in (dout, q, k, v, out)]
    workspaces = _workspaces(q, k, v, cu_seqlens_q, cu_seqlens_k)
    lengths = (cu_seqlens_q, cu_seqlens_k, sequed_q, sequed_k, max_seqlen_q, max_seqlen_k)
    grads = (dq, dk, dv)
    sums: Tensor = torch.ops.flash_attn_3.bwd(dout, q, k, v, out, softmax_lse, *grads, *lengths, *args, **options)[0]
    del workspaces
    return sums


def _workspaces(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor | None, cu_k: Tensor | None) -> list[Tensor]:
    """Return what is accumulated in float32: queries always, keys and values where heads share them; a copy of rows."""
    rows, rows_k = _rows(q, cu_q), _rows(k, cu_k)
    tensors = [q.new_empty((*rows, _rounded_size(q)), dtype=torch.float32), q.new_empty(rows, dtype=torch.float32)]
    if q.shape[-2] != k.shape[-2]:
        tensors += [x.new_zeros((*rows_k, _rounded_size(x)), dtype=torch.float32) for x in (k, v)]
    return tensors


def _rows(x: Tensor, starts: Tensor | None) -> tuple[int, ...]:
    if starts is not None:
        return (x.shape[1], _rounded(x.shape[0] + (starts.numel() - 1) * _BLOCK))
    return (x.shape[0], x.shape[2], _rounded(x.shape[1]))


def _rounded(length: int) -> int:
    return -(-length // _BLOCK) * _BLOCK


def _rounded_size(x: Tensor) -> int:
    return next((size for size in _HEAD_SIZES if x.shape[-1] <= size), x.shape[-1])


def _forward_shapes(q: Tensor, k: Tensor, v: Tensor, *args: Any, **_: Any) -> tuple[Tensor, ...]:
    starts = args[4] if len(args) > 4 else None
    rows = (q.shape[1], q.shape[0]) if starts is not None else (q.shape[0], q.shape[2], q.shape[1])
    dtype = torch.bfloat16 if q.dtype == torch.float8_e4m3fn else q.dtype
    out = q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=dtype)
    nothing = q.new_empty(0, dtype=torch.float32)
    return out, q.new_empty(rows, dtype=torch.float32), nothing, q.new_empty(0, dtype=torch.float32)


def _backward_shapes(dout: Tensor, q: Tensor, k: Tensor, *args: Any) -> tuple[Tensor, ...]:
    starts = args[6] if len(args) > 6 else None
    sums = q.new_empty(_rows(q, starts), dtype=torch.float32)
    return sums, *(q.new_empty(0, dtype=torch.float32) for _ in range(4))


_library.define(_FORWARD)
_library.define(_BACKWARD)
_library.impl("fwd", _forward_shapes, "Meta")
_library.impl("bwd", _backward_shapes, "Meta")
