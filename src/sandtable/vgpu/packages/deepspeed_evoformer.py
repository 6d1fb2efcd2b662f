"""Evoformer attention of DeepSpeed4Science, as AlphaFold's reproductions call it: flash attention with two biases.

Queries, keys and values are (..., length, heads, size). One bias is per row of the alignment, the other per pair of
residues. The forward pass multiplies twice per pair of query and key, the backward pass five times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from sandtable.trace.work import Work
from sandtable.vgpu.packages.kernels import record_kernel

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["EVOFORMER"]


def _attention(
    query: Tensor, key: Tensor, value: Tensor, bias1: Tensor, bias2: Tensor, out: Tensor, lse: Tensor
) -> None:
    inputs = [query, key, value, *_given(bias1, bias2)]
    work = Work(family="attention", flops=2 * _product_flops(query, key))
    record_kernel("deepspeed::evoformer_attention", inputs=inputs, outputs=[out, lse], work=work)


def _attention_bwd(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, delta: Tensor, *others: Tensor
) -> None:
    """Fill the gradients of queries, keys, values and biases, which follow the biases; unwanted ones are empty."""
    inputs = [grad, query, key, value, out, lse, *_given(*others[:2])]
    work = Work(family="attention", flops=5 * _product_flops(query, key), num_kernels=2)
    outputs = [delta, *_given(*others[2:])]
    record_kernel("deepspeed::evoformer_attention_backward", inputs=inputs, outputs=outputs, work=work)


def _product_flops(query: Tensor, key: Tensor) -> int:
    """Return the operations of one product over all pairs of a query and a key."""
    return 2 * query.numel() * key.shape[-3]


def _given(*tensors: Tensor) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor.numel()]


EVOFORMER: Mapping[str, Callable[..., None]] = {"attention": _attention, "attention_bwd": _attention_bwd}
"""The module that the op builder `evoformer_attn` would build."""
