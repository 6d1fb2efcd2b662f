"""The functions of `flash_attn_2_cuda`, flash_attn's compiled module, with the arguments of versions 2.6 to 2.8."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sandtable.trace.work import Work
from sandtable.vgpu.packages.flash_attn import operators
from sandtable.vgpu.packages.kernels import record_kernel

__all__ = ["bwd", "fwd", "fwd_kvcache", "varlen_bwd", "varlen_fwd"]

Outputs = list[Tensor]


def fwd(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor | None, alibi: Tensor | None, p: float, scale: float, causal: bool,
    left: int, right: int, softcap: float, return_softmax: bool, generator: Any = None,
) -> Outputs:  # fmt: skip
    """Attend."""
    results = operators._flash_attn_forward(q, k, v, p, scale, causal, left, right, softcap, alibi, return_softmax)
    return _into(out, results)


def varlen_fwd(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor | None, cu_q: Tensor, cu_k: Tensor, used_k: Tensor | None,
    leftpad_k: Tensor | None, block_table: Tensor | None, alibi: Tensor | None, max_q: int, max_k: int, p: float,
    scale: float, zero_tensors: bool, causal: bool, left: int, right: int, softcap: float, return_softmax: bool,
    generator: Any = None, num_splits: int = 0,
) -> Outputs:  # fmt: skip
    """Attend within sequences laid end to end."""
    results = operators._flash_attn_varlen_forward(
        q, k, v, cu_q, cu_k, max_q, max_k, p, scale, causal, left, right, softcap, alibi, return_softmax,
        block_table, leftpad_k, used_k, zero_tensors,
    )  # fmt: skip
    return _into(out, results)


def bwd(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dq: Tensor | None, dk: Tensor | None,
    dv: Tensor | None, alibi: Tensor | None, p: float, scale: float, causal: bool, left: int, right: int,
    softcap: float, deterministic: bool, generator: Any = None, rng_state: Tensor | None = None,
) -> Outputs:  # fmt: skip
    """Differentiate `fwd`."""
    dq, dk, dv = _gradients((q, dq), (k, dk), (v, dv))
    sums = operators._flash_attn_backward(
        dout, q, k, v, out, lse, dq, dk, dv, p, scale, causal, left, right, softcap, alibi, deterministic, rng_state
    )
    return [dq, dk, dv, sums]


def varlen_bwd(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dq: Tensor | None, dk: Tensor | None,
    dv: Tensor | None, cu_q: Tensor, cu_k: Tensor, alibi: Tensor | None, max_q: int, max_k: int, p: float,
    scale: float, zero_tensors: bool, causal: bool, left: int, right: int, softcap: float, deterministic: bool,
    generator: Any = None, rng_state: Tensor | None = None,
) -> Outputs:  # fmt: skip
    """Differentiate `varlen_fwd`."""
    dq, dk, dv = _gradients((q, dq), (k, dk), (v, dv))
    sums = operators._flash_attn_varlen_backward(
        dout, q, k, v, out, lse, dq, dk, dv, cu_q, cu_k, max_q, max_k, p, scale, causal, left, right, softcap, alibi,
        deterministic, rng_state, zero_tensors,
    )  # fmt: skip
    return [dq, dk, dv, sums]


def fwd_kvcache(q: Tensor, k_cache: Tensor, v_cache: Tensor, *args: Any) -> Outputs:
    """Attend to a cache of keys and values, and add new ones to it: generation, a few queries at a time."""
    batch, length, heads, size = q.shape
    block_table = next((arg for arg in args[6:9] if isinstance(arg, Tensor) and arg.dim() == 2), None)
    keys = k_cache.shape[1] * (1 if block_table is None else block_table.shape[1])
    out = torch.empty_like(q)
    lse = q.new_empty((batch, heads, length), dtype=torch.float32)
    work = Work(family="attention", flops=4 * batch * heads * length * keys * size)
    inputs = [q, k_cache, v_cache, *(arg for arg in args[:2] if isinstance(arg, Tensor))]
    record_kernel("flash_attn::fwd_kvcache", inputs=inputs, outputs=[out, lse], work=work)
    return [out, lse]


def _into(out: Tensor | None, results: tuple[Tensor, ...]) -> Outputs:
    return list(results) if out is None else [out, *results[1:]]


def _gradients(*pairs: tuple[Tensor, Tensor | None]) -> list[Tensor]:
    return [torch.empty_like(tensor) if grad is None else grad for tensor, grad in pairs]
