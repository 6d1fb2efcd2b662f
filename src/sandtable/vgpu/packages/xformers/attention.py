"""`xformers.ops.fmha`: memory-efficient attention, which is FlashAttention where that supports the inputs.

xformers_flash::flash_fwd, flash_bwd      half precision; on Hopper xformers_flash3's, FlashAttention 3
aten::_efficient_attention_forward        float32, or a tensor as bias: xformers uses torch's kernel
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from sandtable.vgpu.packages.xformers.attn_bias import AttentionBias, BlockDiagonalMask, LowerTriangularMask

__all__ = [
    "AttentionBias",
    "LowerTriangularMask",
    "MemoryEfficientAttentionCutlassOp",
    "MemoryEfficientAttentionFlashAttentionOp",
    "flash",
    "memory_efficient_attention",
    "memory_efficient_attention_forward",
]

_WHERE = "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, "
_LONGEST = "SymInt max_seqlen_q, SymInt max_seqlen_k, "
_GRADS = "bool grads_share_storage, Tensor grad, Tensor query, Tensor key, Tensor value, Tensor out, Tensor lse, "
_LIBRARIES: dict[str, Any] = {}
_SCHEMAS = {
    "xformers_flash": (
        f"flash_fwd(Tensor query, Tensor key, Tensor value, {_WHERE}Tensor? seqused_k, {_LONGEST}float p, "
        "float softmax_scale, bool is_causal, SymInt window_left, SymInt window_right, bool return_softmax, "
        "Tensor? block_tables) -> (Tensor, Tensor, Tensor)",
        f"flash_bwd({_GRADS}{_WHERE}{_LONGEST}float p, float softmax_scale, bool is_causal, SymInt window_left, "
        "SymInt window_right, Tensor? rng_state) -> (Tensor, Tensor, Tensor)",
    ),
    "xformers_flash3": (
        f"flash_fwd(Tensor query, Tensor key, Tensor value, {_WHERE}Tensor? seqused_k, Tensor? leftpad_k, {_LONGEST}"
        "float p, float softmax_scale, bool is_causal, SymInt window_left=-1, SymInt window_right=-1) "
        "-> (Tensor, Tensor)",
        f"flash_bwd({_GRADS}{_WHERE}{_LONGEST}float softmax_scale, bool is_causal, SymInt window_left, "
        "SymInt window_right) -> (Tensor, Tensor, Tensor)",
    ),
}
_HALF = (torch.float16, torch.bfloat16)


def memory_efficient_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float | None = None,
    *,
    op: Any = None,
    output_dtype: Any = None,
) -> Tensor:
    """Attend: (batch, length, heads, size), with groups of heads before them, or (batch, length, size)."""
    if query.dim() == 3:
        q, k, v = (x.unsqueeze(2) for x in (query, key, value))
        return memory_efficient_attention(q, k, v, attn_bias, p, scale).squeeze(2)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if query.dtype not in _HALF or isinstance(attn_bias, Tensor) or hasattr(attn_bias, "_subtensor"):
        return _attend_in_torch(query, key, value, attn_bias, p, scale)
    result: Tensor = _Attention.apply(attn_bias, p, scale, query, key, value)  # type: ignore[no-untyped-call]
    return result


def memory_efficient_attention_forward(query: Tensor, key: Tensor, value: Tensor, *args: Any, **options: Any) -> Tensor:
    """Attend without gradients."""
    with torch.no_grad():
        return memory_efficient_attention(query, key, value, *args, **options)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, bias: Any, p: float, scale: float, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        q, k, v = (_folded(x, is_query=x is query) for x in (query, key, value))
        where, longest = _lengths(bias, q, k)
        if where[0] is not None:
            q, k, v = (x.flatten(0, 1) for x in (q, k, v))
        out, lse, *state = _forward(where, longest, _Mask(bias, p, scale), q, k, v)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.bias, ctx.p, ctx.scale, ctx.state = bias, p, scale, state[0] if p else None
        result: Tensor = out.view(*query.shape[:-1], value.shape[-1])
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        query, key, value, out, lse = ctx.saved_tensors
        q, k, v = (x.reshape(*x.shape[:2], -1, x.shape[-1]) for x in (query, key, value))
        where, longest = _lengths(ctx.bias, q, k)
        if where[0] is not None:
            q, k, v = (x.flatten(0, 1) for x in (q, k, v))
        saved = (grad.reshape(out.shape).contiguous(), q, k, v, out, lse)
        grads = _backward(where, longest, _Mask(ctx.bias, ctx.p, ctx.scale), saved, ctx.state)
        shaped = (grad.view(x.shape) for grad, x in zip(grads, (query, key, value), strict=True))
        return None, None, None, *shaped


class _Mask:
    """What a kernel is told besides tensors and lengths."""

    def __init__(self, bias: Any, p: float, scale: float) -> None:
        self.p, self.scale = p, scale
        self.is_causal = bias is not None and bias.is_causal
        self.window = (-1, -1) if bias is None else bias.window


def _forward(where: Any, longest: Any, mask: _Mask, q: Tensor, k: Tensor, v: Tensor) -> Any:
    last = (mask.p, mask.scale, mask.is_causal, *mask.window)
    if _library_name() == "xformers_flash":
        return _operators().flash_fwd(q, k, v, *where, *longest, *last, False, None)
    return _operators().flash_fwd(q, k, v, *where, None, *longest, *last)


def _backward(where: Any, longest: Any, mask: _Mask, saved: tuple[Tensor, ...], state: Tensor | None) -> Any:
    last = (mask.scale, mask.is_causal, *mask.window)
    if _library_name() == "xformers_flash":
        return _operators().flash_bwd(False, *saved, *where[:2], *longest, mask.p, *last, state)
    return _operators().flash_bwd(False, *saved, *where[:2], *longest, *last)


def _lengths(bias: Any, q: Tensor, k: Tensor) -> tuple[tuple[Tensor | None, ...], tuple[int, int]]:
    """Return where sequences begin (queries, keys, used keys; None if all are as long), and the longest."""
    if not isinstance(bias, BlockDiagonalMask):
        return (None, None, None), (q.shape[1], k.shape[1])
    queries, keys = bias.q_seqinfo, bias.k_seqinfo
    return (queries.seqstart, keys.seqstart, keys.seqlen), (queries.max_seqlen, keys.max_seqlen)


def _folded(x: Tensor, *, is_query: bool) -> Tensor:
    """Return groups of heads as heads; where a group shares a head of keys, only that head."""
    if x.dim() == 4:
        return x
    return x[:, :, :, 0] if x.stride(3) == 0 and not is_query else x.reshape(*x.shape[:2], -1, x.shape[-1])


def _attend_in_torch(query: Tensor, key: Tensor, value: Tensor, bias: Any, p: float, scale: float) -> Tensor:
    q, k, v = (x.reshape(*x.shape[:2], -1, x.shape[-1]).transpose(1, 2) for x in (query, key, value))
    tensor = bias if isinstance(bias, Tensor) else getattr(bias, "_subtensor", None)
    is_causal = isinstance(bias, AttentionBias) and bias.is_causal and tensor is None
    attend = torch.nn.functional.scaled_dot_product_attention
    out = attend(q, k, v, attn_mask=tensor, dropout_p=p, is_causal=is_causal, scale=scale)
    return out.transpose(1, 2).reshape(*query.shape[:-1], value.shape[-1])


def _library_name() -> str:
    return "xformers_flash3" if torch.cuda.get_device_capability()[0] == 9 else "xformers_flash"


def _operators() -> Any:
    """Return the operators for this card."""
    return getattr(torch.ops, _library_name())


def _define(name: str) -> None:
    _LIBRARIES[name] = torch.library.Library(name, "FRAGMENT")  # type: ignore[no-untyped-call]
    for schema in _SCHEMAS[name]:
        _LIBRARIES[name].define(schema)
    _LIBRARIES[name].impl("flash_fwd", _shapes if name == "xformers_flash" else lambda *a: _shapes(*a)[:2], "Meta")
    _LIBRARIES[name].impl("flash_bwd", lambda _, grad, *tensors: tuple(map(torch.empty_like, tensors[:3])), "Meta")


def _shapes(query: Tensor, key: Tensor, value: Tensor, starts: Tensor | None, *_: Any) -> tuple[Tensor, ...]:
    rows = (query.shape[1], query.shape[0]) if starts is not None else (query.shape[0], query.shape[2], query.shape[1])
    out = query.new_empty((*query.shape[:-1], value.shape[-1]))
    return out, query.new_empty(rows, dtype=torch.float32), query.new_empty(2, dtype=torch.int64)


for _name in _SCHEMAS:
    _define(_name)

flash = SimpleNamespace(
    FwOp=SimpleNamespace(OPERATOR=torch.ops.xformers_flash.flash_fwd, NAME="fa2F"),
    BwOp=SimpleNamespace(OPERATOR=torch.ops.xformers_flash.flash_bwd, NAME="fa2B"),
)
MemoryEfficientAttentionFlashAttentionOp = (flash.FwOp, flash.BwOp)
MemoryEfficientAttentionCutlassOp = (SimpleNamespace(NAME="cutlassF-pt"), SimpleNamespace(NAME="cutlassB-pt"))
