"""Fused attention: cuDNN's, forward and backward, and what context parallelism does with packed sequences.

    transformer_engine::fused_attn_fwd, transformer_engine::fused_attn_bwd

are operators with a fixed schema, because their cost depends on the mask and the kind of pass; the engine prices them
like torch's own. Rows of packed sequences ("thd") are as long as the longest may be.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sandtable.vgpu.packages.transformer_engine.enumerations import NVTE_Fused_Attn_Backend
from sandtable.vgpu.packages.transformer_engine.kernels import launch
from sandtable.vgpu.packages.transformer_engine.quantization import quantize

__all__ = [
    "convert_bshd_to_thd",
    "convert_thd_to_bshd",
    "fa_prepare_bwd",
    "fa_prepare_fwd",
    "fused_attn_bwd",
    "fused_attn_fwd",
    "get_fused_attn_backend",
    "multi_tensor_pad_last_dim",
    "multi_tensor_transpose_to_bhsd",
    "thd_cp_rank_order_to_sequence_order",
    "thd_get_partitioned_indices",
    "thd_grad_correction",
    "thd_out_correction",
    "thd_read_half_tensor",
    "thd_read_second_half_lse",
    "thd_second_half_lse_correction",
    "thd_sequence_order_to_cp_rank_order",
]

_LIBRARY: Any = torch.library.Library("transformer_engine", "FRAGMENT")  # type: ignore[no-untyped-call]
_OPERANDS = "Tensor query, Tensor key, Tensor value, int max_q, int max_k, float dropout_p, bool is_causal"
_LIBRARY.define(f"fused_attn_fwd({_OPERANDS}, Tensor(a!) logsumexp, Tensor(b!) out) -> ()")
_LIBRARY.define(
    f"fused_attn_bwd(Tensor grad, {_OPERANDS}, Tensor out, Tensor logsumexp, "
    "Tensor(a!) grad_query, Tensor(b!) grad_key, Tensor(c!) grad_value) -> ()"
)
for _name in ("fused_attn_fwd", "fused_attn_bwd"):
    _LIBRARY.impl(_name, lambda *_: None, "Meta")


def get_fused_attn_backend(*params: Any, **options: Any) -> Any:
    """Return that the kernel for any length is there, in the form that the release expects."""
    if len(params) == 1:  # a dataclass, and the answer comes with the reason for a "no"
        is_fp8 = int(params[0].qkv_dtype) in (7, 8)
        backend = NVTE_Fused_Attn_Backend.NVTE_FP8 if is_fp8 else NVTE_Fused_Attn_Backend.NVTE_F16_arbitrary_seqlen
        return backend, ""
    is_fp8 = int(params[1]) in (7, 8)
    return NVTE_Fused_Attn_Backend.NVTE_FP8 if is_fp8 else NVTE_Fused_Attn_Backend.NVTE_F16_arbitrary_seqlen


def fused_attn_fwd(
    *,
    max_seqlen_q: int,
    max_seqlen_kv: int,
    q: Any,
    k: Any,
    v: Any,
    fake_dtype: torch.dtype,
    dropout: float = 0.0,
    qkv_layout: str = "sbh3d",
    o_format: str = "sbhd",
    attn_mask_type: str = "padding",
    window_size: tuple[int, int] = (-1, -1),
    o_quantizer: Any = None,
    attn_bias: Tensor | None = None,
    softmax_offset: Tensor | None = None,
    return_max_logit: bool = False,
    **options: Any,
) -> tuple[Any, ...]:
    """Return the output and, for the backward pass, the sums of exponentials and the generator's state."""
    query_format, key_format = _formats(qkv_layout)
    query, key, value = _plain(q, query_format), _plain(k, key_format), _plain(v, key_format)
    out = torch.empty(
        _shape(query.shape[:-1] + value.shape[-1:], o_format), dtype=_out_type(o_quantizer, fake_dtype), device="cuda"
    )
    sums = torch.empty(_sums_shape(query), dtype=torch.float32, device="cuda")
    causal, key, value = _masked(attn_mask_type, window_size, key, value)
    lengths = max_seqlen_q, max_seqlen_kv
    torch.ops.transformer_engine.fused_attn_fwd(
        query, key, value, *lengths, dropout, causal, sums, _batch_first(out, o_format)
    )
    saved = [sums, torch.empty(2, dtype=torch.int64, device="cuda")]
    saved += [tensor for tensor in (attn_bias, softmax_offset) if tensor is not None]
    result = _as_requested(out, o_quantizer)
    if return_max_logit:
        return result, saved, torch.empty(query.shape[-2], dtype=fake_dtype, device="cuda")
    return result, saved


def fused_attn_bwd(
    *,
    max_seqlen_q: int,
    max_seqlen_kv: int,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    d_o: Any,
    fake_dtype: torch.dtype,
    aux_ctx_tensors: Sequence[Tensor],
    dropout: float = 0.0,
    qkv_layout: str = "sbh3d",
    o_format: str = "sbhd",
    do_format: str = "sbhd",
    dqkv_layout: str = "sbh3d",
    attn_mask_type: str = "padding",
    window_size: tuple[int, int] = (-1, -1),
    dqkv_quantizer: Any = None,
    **options: Any,
) -> list[Any]:
    """Return the gradients of queries, keys and values: packed into one buffer if those were."""
    query_format, key_format = _formats(qkv_layout)
    query, key, value = _plain(q, query_format), _plain(k, key_format), _plain(v, key_format)
    gradients = _gradients(dqkv_layout, query, key, value, fake_dtype)
    grad_query_format, grad_key_format = _formats(dqkv_layout)
    views = [
        _batch_first(gradient, layout)
        for gradient, layout in zip(gradients, (grad_query_format, grad_key_format, grad_key_format), strict=True)
    ]
    causal, key, value = _masked(attn_mask_type, window_size, key, value)
    torch.ops.transformer_engine.fused_attn_bwd(
        _plain(d_o, do_format),
        query,
        key,
        value,
        max_seqlen_q,
        max_seqlen_kv,
        dropout,
        causal,
        _plain(o, o_format),
        aux_ctx_tensors[0],
        *views,
    )
    results = [_as_requested(gradient, dqkv_quantizer) for gradient in gradients]
    return [*results, None, None]  # no gradients of a bias or of an offset in the softmax


def _formats(layout: str) -> tuple[str, str]:
    """Return the order of dims of queries, and of keys and values: "sbhd_sb2hd" gives twice "sbhd"."""
    parts = [re.sub(r"\d", "", part) for part in layout.lower().removeprefix("paged_kv_").split("_")]
    return parts[0], parts[-1]


def _plain(tensor: Any, layout: str) -> Tensor:
    """Return (batch, sequence, heads, dim) or (tokens, heads, dim) of the data, whatever its type."""
    data = getattr(tensor, "_data", None)
    if data is None:
        data = getattr(tensor, "_rowwise_data", None)
    if isinstance(data, Tensor):
        tensor = data.view(torch.float8_e4m3fn)
    return _batch_first(tensor, layout)


def _batch_first(tensor: Tensor, layout: str) -> Tensor:
    if layout == "sbhd":
        return tensor.transpose(0, 1)
    return tensor.transpose(1, 2) if layout == "bhsd" else tensor


def _shape(shape: torch.Size, layout: str) -> tuple[int, ...]:
    """Return a shape that begins with the batch, in another order of dims."""
    if len(shape) == 3:
        return tuple(shape)
    batch, sequence, heads, dim = shape
    return {
        "sbhd": (sequence, batch, heads, dim),
        "bhsd": (batch, heads, sequence, dim),
    }.get(layout, (batch, sequence, heads, dim))


def _sums_shape(query: Tensor) -> tuple[int, ...]:
    if query.dim() == 3:
        return (query.shape[0], query.shape[1], 1)
    return (query.shape[0], query.shape[2], query.shape[1], 1)


def _masked(
    mask_type: str, window_size: tuple[int, int] | None, key: Tensor, value: Tensor
) -> tuple[bool, Tensor, Tensor]:
    """Return whether the mask is causal, and the keys that a query meets: all of them, or as many as the window has."""
    left = window_size[0] if window_size else -1
    if 0 <= left < key.shape[-3] - 1:
        return False, key[..., : left + 1, :, :], value[..., : left + 1, :, :]
    return "causal" in mask_type, key, value


def _gradients(layout: str, query: Tensor, key: Tensor, value: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Allocate the gradients as the layout says: three tensors, or views of one or two."""
    query_format, key_format = _formats(layout)
    packed = re.search(r"(.*)([23])(.*)", layout)

    def alone(tensor: Tensor, order: str) -> Tensor:
        return torch.empty(_shape(tensor.shape, order), dtype=dtype, device="cuda")

    if packed is None:
        return [alone(query, query_format), alone(key, key_format), alone(value, key_format)]
    count = int(packed.group(2))
    dim = -2 if packed.group(3) == "d" else -3  # "h3d" or "3hd"
    shape = list(_shape(key.shape, key_format))
    shape.insert(len(shape) + dim + 1, count)
    parts = list(torch.empty(shape, dtype=dtype, device="cuda").unbind(dim))
    return parts if count == 3 else [alone(query, query_format), *parts]


def _out_type(quantizer: Any, dtype: torch.dtype) -> torch.dtype:
    return torch.uint8 if type(quantizer).__name__ == "Float8Quantizer" else dtype


def _as_requested(tensor: Tensor, quantizer: Any) -> Any:
    """Return the result in FP8: as the kernel wrote it if the scale was known, else cast."""
    if quantizer is None:
        return tensor
    if tensor.dtype == torch.uint8:
        return quantizer.create_tensor_from_data(tensor, fake_dtype=torch.bfloat16, internal=quantizer.internal)
    return quantize(tensor, quantizer)


def convert_thd_to_bshd(tensor: Tensor, cu_seqlens: Tensor, b: int, max_seq_len: int) -> Tensor:
    output = torch.empty((b, max_seq_len, *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device)
    launch("convert_thd_to_bshd", [tensor], [output], "copy")
    return output


def convert_bshd_to_thd(tensor: Tensor, cu_seqlens: Tensor, t: int) -> Tensor:
    output = torch.empty((t, *tensor.shape[2:]), dtype=tensor.dtype, device=tensor.device)
    launch("convert_bshd_to_thd", [tensor], [output], "copy")
    return output


def fa_prepare_fwd(qkvi: Tensor) -> Tensor:
    sequence, batch, heads, dim = qkvi.shape
    output = torch.empty((3, batch, sequence, heads, dim), dtype=qkvi.dtype, device=qkvi.device)
    launch("fa_prepare_fwd", [output], [output], "copy")
    return output


def fa_prepare_bwd(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    batch, sequence, heads, dim = q.shape
    output = torch.empty((sequence, batch, heads, 3 * dim), dtype=q.dtype, device=q.device)
    launch("fa_prepare_bwd", [q, k, v], [output], "copy")
    return output


def multi_tensor_transpose_to_bhsd(
    inputs: Sequence[Tensor], original_format: str, outputs: Sequence[Tensor | None] = ()
) -> list[Tensor]:
    results = []
    for tensor in inputs:
        shape = _batch_first(tensor, original_format).transpose(1, 2).shape
        results.append(torch.empty(shape, dtype=tensor.dtype, device=tensor.device))
    launch("multi_tensor_transpose_to_bhsd", inputs, results, "copy")
    return results


def multi_tensor_pad_last_dim(inputs: Sequence[Tensor], alignment: int) -> list[Tensor]:
    results = [
        torch.empty(
            (*tensor.shape[:-1], -(-tensor.shape[-1] // alignment) * alignment), dtype=tensor.dtype, device="cuda"
        )
        for tensor in inputs
    ]
    launch("multi_tensor_pad_last_dim", inputs, results, "copy")
    return results


def thd_read_half_tensor(tensor: Tensor, cu_seqlens: Tensor, half_idx: int) -> Tensor:
    tokens = tensor.dim() - 3
    shape = [*tensor.shape[:tokens], tensor.shape[tokens] // 2, *tensor.shape[tokens + 1 :]]
    output = torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
    launch("thd_read_half_tensor", [output], [output], "copy")  # reads the half that it writes
    return output


def thd_read_second_half_lse(lse: Tensor, cu_seqlens: Tensor, lse_packed: bool, second_half_lse_seqlen: int) -> Tensor:
    output = torch.empty((*lse.shape[:-1], second_half_lse_seqlen), dtype=lse.dtype, device=lse.device)
    launch("thd_read_second_half_lse", [output], [output], "copy")
    return output


def thd_second_half_lse_correction(lse: Tensor, lse_per_step: Tensor, cu_seqlens: Tensor, lse_packed: bool) -> None:
    launch("thd_second_half_lse_correction", [lse_per_step, lse_per_step], [lse_per_step], "elementwise")


def thd_out_correction(out: Tensor, out_per_step: Tensor, lse: Tensor, lse_per_step: Tensor, *settings: Any) -> None:
    launch("thd_out_correction", [out_per_step, out_per_step, lse, lse_per_step], [out], "elementwise")


def thd_grad_correction(
    grad: Tensor, grad_per_step: Tensor, cu_seqlens: Tensor, first_half: str, second_half: str
) -> None:
    launch("thd_grad_correction", [grad, grad_per_step], [grad], "elementwise")


def thd_get_partitioned_indices(cu_seqlens: Tensor, total_tokens: int, world_size: int, rank: int) -> Tensor:
    output = torch.empty(total_tokens // world_size, dtype=torch.int32, device=cu_seqlens.device)
    launch("thd_get_partitioned_indices", [cu_seqlens], [output], "elementwise")
    return output


def thd_sequence_order_to_cp_rank_order(tensor: Tensor, cu_seqlens: Tensor, *settings: int) -> Tensor:
    output = torch.empty_like(tensor)
    launch("thd_reorder", [tensor], [output], "copy")
    return output


thd_cp_rank_order_to_sequence_order = thd_sequence_order_to_cp_rank_order
