"""Operators of flash_attn, with the schemas it registers them with, and the memory around their backward passes.

flash_attn 2.7 and newer makes these operators itself, in Python; then its own definitions are used. The virtual GPU
takes shapes from their Meta kernels and records the calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "_flash_attn_backward",
    "_flash_attn_forward",
    "_flash_attn_varlen_backward",
    "_flash_attn_varlen_forward",
    "_wrapped_flash_attn_backward",
    "_wrapped_flash_attn_forward",
    "_wrapped_flash_attn_varlen_backward",
    "_wrapped_flash_attn_varlen_forward",
]

Outputs = tuple[Tensor, Tensor, Tensor, Tensor]

_SETTINGS = "float softcap, Tensor? alibi_slopes, "
_WINDOW = "float dropout_p, float softmax_scale, bool causal, SymInt window_size_left, SymInt window_size_right, "
_LENGTHS = "Tensor cu_seqlens_q, Tensor cu_seqlens_k, SymInt max_seqlen_q, SymInt max_seqlen_k, "
_GRADS = "Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, "
_WRITTEN = "Tensor(a!)? dq, Tensor(b!)? dk, Tensor(c!)? dv, "
_SCHEMAS = {
    "_flash_attn_forward": f"(Tensor q, Tensor k, Tensor v, {_WINDOW}{_SETTINGS}bool return_softmax)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    "_flash_attn_varlen_forward": f"(Tensor q, Tensor k, Tensor v, {_LENGTHS}"
    "float dropout_p, float softmax_scale, bool causal, SymInt window_size_left=-1, SymInt window_size_right=-1, "
    "float softcap=0., Tensor? alibi_slopes=None, bool return_softmax=False, Tensor? block_table=None, "
    "Tensor? leftpad_k=None, Tensor? seqused_k=None, bool zero_tensors=False, SymInt num_splits=0)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    "_flash_attn_backward": f"({_GRADS}{_WRITTEN}{_WINDOW}{_SETTINGS}bool deterministic, Tensor? rng_state=None)"
    " -> Tensor",
    "_flash_attn_varlen_backward": f"({_GRADS}{_WRITTEN}{_LENGTHS}{_WINDOW}{_SETTINGS}"
    "bool deterministic, Tensor? rng_state=None, bool zero_tensors=False) -> Tensor",
}
_library: Any = torch.library.Library("flash_attn", "FRAGMENT")  # type: ignore[no-untyped-call]


def _flash_attn_forward(q: Tensor, k: Tensor, v: Tensor, *args: Any, **options: Any) -> Outputs:
    """Return the output, the logarithms of the sums (float32 per row), the probabilities (none) and the state."""
    result: Outputs = _operator("_flash_attn_forward")(*map(_contiguous, (q, k, v)), *args, **options)
    return result


def _flash_attn_varlen_forward(q: Tensor, k: Tensor, v: Tensor, *args: Any, **options: Any) -> Outputs:
    """Return what `_flash_attn_forward` does, for sequences laid end to end."""
    result: Outputs = _operator("_flash_attn_varlen_forward")(*map(_contiguous, (q, k, v)), *args, **options)
    return result


def _flash_attn_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, *args: Any, **options: Any
) -> Tensor:
    """Write the gradients; return the rows' sums of gradient times output."""
    batch, length, heads, size = q.shape
    rows = (batch, _rounded(length, 128), heads, _rounded_size(size))
    deterministic = options.get("deterministic", args[10] if len(args) > 10 else False)
    accumulator = _accumulator(q, rows, num_groups=batch * heads, deterministic=deterministic)
    dk, dv = (_argument(name, at, args, options) for name, at in (("dk", 1), ("dv", 2)))
    saved = (*map(_contiguous, (dout, q, k, v, out)), softmax_lse)
    with _Expanded(q, k, dk, dv):
        result: Tensor = _operator("_flash_attn_backward")(*saved, *args, **options)
    del accumulator
    return result


def _flash_attn_varlen_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, *args: Any, **options: Any
) -> Tensor:
    """Write the gradients of sequences laid end to end."""
    total, heads, size = q.shape
    batch = _argument("cu_seqlens_q", 3, args, options).numel() - 1
    rows = (total + 128 * batch, heads, _rounded_size(size))
    deterministic = options.get("deterministic", args[14] if len(args) > 14 else False)
    accumulator = _accumulator(q, rows, num_groups=batch * heads, deterministic=deterministic)
    dk, dv = (_argument(name, at, args, options) for name, at in (("dk", 1), ("dv", 2)))
    saved = (*map(_contiguous, (dout, q, k, v, out)), softmax_lse)
    with _Expanded(q, k, dk, dv):
        result: Tensor = _operator("_flash_attn_varlen_backward")(*saved, *args, **options)
    del accumulator
    return result


_wrapped_flash_attn_forward = _flash_attn_forward
_wrapped_flash_attn_backward = _flash_attn_backward
_wrapped_flash_attn_varlen_forward = _flash_attn_varlen_forward
_wrapped_flash_attn_varlen_backward = _flash_attn_varlen_backward


class _Expanded:
    """Gradients of keys and values per query head, which a second kernel adds up where heads share them."""

    def __init__(self, q: Tensor, k: Tensor, dk: Tensor | None, dv: Tensor | None) -> None:
        self._heads, self._heads_k = q.shape[-2], k.shape[-2]
        self._grads = [grad for grad in (dk, dv) if grad is not None]
        self._expanded: list[Tensor] = []

    def __enter__(self) -> None:
        if self._heads != self._heads_k:
            shapes = [(*grad.shape[:-2], self._heads, grad.shape[-1]) for grad in self._grads]
            self._expanded = [grad.new_empty(shape) for grad, shape in zip(self._grads, shapes, strict=True)]

    def __exit__(self, *_: object) -> None:
        for grad, expanded in zip(self._grads, self._expanded, strict=False):
            torch.sum(expanded.view(*grad.shape[:-1], -1, grad.shape[-1]), dim=-2, out=grad)


def _accumulator(q: Tensor, rows: tuple[int, ...], *, num_groups: int, deterministic: bool) -> Tensor:
    """Return where blocks add up the gradient of the queries, once per group of blocks if the order must not matter."""
    if not deterministic:
        return q.new_empty(rows, dtype=torch.float32)
    num_sms = torch.cuda.get_device_properties(q.device).multi_processor_count
    return q.new_zeros((-(-num_sms // num_groups), *rows), dtype=torch.float32)


def _argument(name: str, at: int, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    return args[at] if len(args) > at else options.get(name)


def define() -> None:
    """Make the operators that the installed package has not made; not where Dynamo would trace it."""
    for name, schema in _SCHEMAS.items():
        if not hasattr(torch.ops.flash_attn, name):
            _library.define(name + schema)
            _library.impl(name, _SHAPES[name], "Meta")


def _operator(name: str) -> Callable[..., Any]:
    if not hasattr(torch.ops.flash_attn, name):
        define()
    operator: Callable[..., Any] = getattr(torch.ops.flash_attn, name)
    return operator


def _forward_shapes(q: Tensor, k: Tensor, *args: Any) -> Outputs:
    batch, length, heads, _ = q.shape
    return _outputs(q, (batch, heads, length), args[-1] and (batch, heads, length, k.shape[1]))


def _varlen_forward_shapes(q: Tensor, k: Tensor, v: Tensor, *args: Any) -> Outputs:
    lengths_q, _, longest_q, longest_k = args[:4]
    total, heads, _ = q.shape
    returns_softmax = len(args) > 11 and args[11]
    return _outputs(q, (heads, total), returns_softmax and (lengths_q.numel() - 1, heads, longest_q, longest_k))


def _outputs(q: Tensor, rows: tuple[int, ...], softmax: Any) -> Outputs:
    shape = (*softmax[:2], _rounded(softmax[2], 128), _rounded(softmax[3], 128)) if softmax else (0,)
    return (
        torch.empty_like(q, memory_format=torch.contiguous_format),
        q.new_empty(rows, dtype=torch.float32),
        q.new_empty(shape),
        q.new_empty(2, dtype=torch.int64),
    )


def _backward_shape(dout: Tensor, q: Tensor, *args: Any) -> Tensor:
    batch, length, heads, _ = q.shape
    return q.new_empty((batch, heads, _rounded(length, 128)), dtype=torch.float32)


def _varlen_backward_shape(dout: Tensor, q: Tensor, *args: Any) -> Tensor:
    total, heads, _ = q.shape
    num_sequences = args[7].numel() - 1
    return q.new_empty((heads, total + 128 * num_sequences), dtype=torch.float32)


_SHAPES: dict[str, Callable[..., Any]] = {
    "_flash_attn_forward": _forward_shapes,
    "_flash_attn_varlen_forward": _varlen_forward_shapes,
    "_flash_attn_backward": _backward_shape,
    "_flash_attn_varlen_backward": _varlen_backward_shape,
}


def _contiguous(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _rounded(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _rounded_size(head_size: int) -> int:
    return _rounded(head_size, 32 if head_size <= 128 else 64)
