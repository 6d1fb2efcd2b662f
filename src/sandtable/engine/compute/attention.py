"""Fused attention: softmax(Q·Kᵀ)·V in one kernel that never writes the scores.

The arithmetic is that of `trace.flops`, which counts a causal mask's whole square: kernels skip the blocks above the
diagonal, so of n blocks a side they do (n + 1) / 2n. The share of the peak depends on the kernel (FlashAttention 2 or
3, memory-efficient, cuDNN), on the pass, on how many keys a query meets (a block of queries starts and ends with work
that does not grow with the keys: as much as `ramp_keys` of them), and on the size of a head: the exponential of a score
takes as long as `head_ramp` dimensions of it. Heads are padded to the next size that the kernel has.

    time = turns · num_sms · block · (keys + ramp_keys) · FLOPs of a query with a key / (peak · share)

Blocks of equal length are dealt to the multiprocessors in whole turns. Those of a causal mask differ, the longest come
first, and the short ones fill the gaps: half a turn is lost at the end.

Dao 2023 (FlashAttention-2) and Shah et al. 2024 (FlashAttention-3) show these curves for A100 and H100;
`bench/kernels.py` compares them, and tables of cuDNN, with this formula.
"""

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import ClassVar, cast

from sandtable.cluster.device import AttentionPass
from sandtable.engine.compute.family import Basis, Family, names, slower_of
from sandtable.engine.compute.rates import best_rate
from sandtable.trace.flops import ATTENTION_PACKAGES, attention_window, num_packed, square_flops
from sandtable.trace.signature import Signature, TensorSpec

__all__ = ["Attention", "kernel_of", "pass_of"]

_BLOCK = 128
_TALL_BLOCK = 192
_TALL_BLOCK_HEAD = 96
"""FlashAttention-3 takes more queries at a time when heads are small."""

_SMALLEST_BLOCK = 16
_FULL_HEAD = 128
_WIDE_HEAD = 192
_FLOAT32_SHARE = 0.5
"""Of the ordinary lanes' peak: float32 has only the memory-efficient kernel."""

_PAGED_SHARE = 0.88
"""What remains of the speed when keys are found by a table of pages instead of one after the other."""

_PLAN_NS = 5000.0
"""FlashAttention-3 plans the blocks of packed sequences in a kernel of its own; a call takes 11 us at least."""

_HEADS = {
    "flash": (32, 64, 96, 128, 192, 256),
    "flash3": (64, 96, 128, 192, 256),
    "cudnn": (64, 128, 192, 256),
    "efficient": (32, 64, 128, 256),
}
"""Sizes of heads that the kernels are compiled for."""

_MASK_TYPE_AT = {"aten::_efficient_attention_forward": 9, "aten::_efficient_attention_backward": 14}


class Attention(Family):
    """Attention in one kernel; attention made of products and a softmax is costed as those."""

    name = "attention"
    operators: ClassVar[frozenset[str]] = (
        names(
            "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward "
            "_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward "
            "_scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward "
            "_scaled_dot_product_fused_attention_overrideable "
            "_scaled_dot_product_fused_attention_overrideable_backward "
            "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward "
            "_scaled_dot_product_attention_math _flash_attention_forward _flash_attention_backward "
            "_efficient_attention_forward _efficient_attention_backward "
            "_cudnn_attention_forward _cudnn_attention_backward"
        )
        | names(
            "_flash_attn_forward _flash_attn_backward _flash_attn_varlen_forward _flash_attn_varlen_backward",
            library="flash_attn",
        )
        | names("fwd bwd", library="flash_attn_3")
        | names("flash_fwd flash_bwd", library="xformers_flash")
        | names("flash_fwd flash_bwd", library="xformers_flash3")
        | names("fused_attn_fwd fused_attn_bwd", library="transformer_engine")
    )

    def work_ns(self, signature: Signature) -> float:
        shape = _Shape.of(signature)
        bytes_ns = self.memory_ns(self.traffic_bytes(signature), self.streaming.elementwise_share)
        return slower_of(self._products_ns(signature, shape), bytes_ns) + self._other_kernels_ns(signature, shape)

    def _other_kernels_ns(self, signature: Signature, shape: "_Shape") -> float:
        """Return the time of kernels before and after the main one, and of launching all.

        Backward, dO·O is summed per row first, and dQ is added up in float32 (written as zeros before, read and cast
        after): 4 bytes per dimension of a value, and 10 of a query.
        """
        kernel_ns = self.streaming.kernel_ns
        if not is_backward(signature):
            return kernel_ns + (_PLAN_NS if shape.is_packed and kernel_of(signature.name) == "flash3" else 0.0)
        if kernel_of(signature.name) == "efficient":
            return 2 * kernel_ns
        gradient_bytes = shape.num_rows * shape.num_queries * (4 * shape.v_dim + 10 * shape.qk_dim)
        return 3 * kernel_ns + self.memory_ns(gradient_bytes, self.streaming.elementwise_share)

    def _products_ns(self, signature: Signature, shape: "_Shape") -> float:
        """Return the time of the blocks of queries, each with its keys and `ramp_keys` more, dealt out in turns."""
        if not shape.keys:
            return 0.0
        table = pass_of(self.device.efficiency.attention, signature.name)
        block = _queries_per_block(signature, shape)
        full = _BLOCK * ceil(shape.keys / _BLOCK)
        is_skipped = is_causal(signature) and (table.float8_skips or not _is_float8(signature))
        visited = (full + min(block, full)) / 2 if is_skipped else float(full)
        if shape.window:
            visited = min(visited, shape.window + block)
        turns = shape.num_rows * ceil(shape.num_queries / block) / self.device.num_sms
        turns = max(1.0, turns + 0.5) if visited < full else ceil(turns)
        pairs = turns * self.device.num_sms * block * (visited + table.ramp_keys)
        return pairs * shape.padded_flops * 1e9 / (self._rate(signature, table) * _head_share(shape.padded_dim, table))

    def basis(self, signature: Signature) -> Basis:
        """Return the basis of the generation's table."""
        return cast(Basis, self.device.efficiency.attention.status)

    def _rate(self, signature: Signature, table: AttentionPass) -> float:
        """Return the operations per second for many keys and heads of 128."""
        rate = best_rate(self.device, _query(signature).dtype)
        if not rate.on_matrix_units and self.device.vendor != "cpu":
            return rate.peak * _FLOAT32_SHARE
        share = table.share * (self.device.efficiency.attention.burst_gain if self.conditions.burst else 1.0)
        if _is_float8(signature):
            share *= table.float8_share
        if _is_deterministic(signature):
            share *= table.deterministic_share
        if _has_pages(signature):
            share *= _PAGED_SHARE
        return rate.peak * share


@dataclass(frozen=True, slots=True)
class _Shape:
    """Queries of all heads and sequences, the keys each may meet, and the arithmetic of one pair as it is padded."""

    num_rows: int
    num_queries: int
    keys: int
    window: int
    qk_dim: int
    v_dim: int
    is_packed: bool
    padded_flops: int
    padded_dim: float

    @classmethod
    def of(cls, signature: Signature) -> "_Shape":
        """Read the shape of a recorded operator; packed sequences count as so many of their mean length."""
        *batch, first, second, qk_dim = _query(signature).shape
        heads, num_queries = (first, second) if "scaled_dot_product" in signature.name else (second, first)
        num_sequences = batch[0] if batch else num_packed(signature)
        num_rows, num_queries = num_sequences * heads, num_queries if batch else -(-num_queries // num_sequences)
        v_dim = signature.inputs[3 if is_backward(signature) else 2].shape[-1]
        pair = _pair_flops(signature, qk_dim, v_dim)
        keys = square_flops(signature) // max(1, num_rows * num_queries * pair)
        sizes = _HEADS[kernel_of(signature.name)]
        qk_padded, v_padded = (_next_size(sizes, dim) for dim in (qk_dim, v_dim))
        return cls(
            num_rows=num_rows,
            num_queries=num_queries,
            keys=keys,
            window=attention_window(signature),
            qk_dim=qk_dim,
            v_dim=v_dim,
            is_packed=not batch,
            padded_flops=_pair_flops(signature, qk_padded, v_padded),
            padded_dim=(qk_padded + v_padded) / 2,
        )


def kernel_of(name: str) -> str:
    """Return which kernel an operator is: flash, flash3, efficient or cudnn."""
    if name.startswith("transformer_engine::") or "cudnn" in name:
        return "cudnn"
    if "flash3" in name or "flash_attn_3" in name:
        return "flash3"
    return "efficient" if "efficient" in name else "flash"


def pass_of(table: object, name: str) -> AttentionPass:
    """Return the numbers of an operator's kernel and pass."""
    kernel = getattr(table, kernel_of(name))
    return cast(AttentionPass, kernel.backward if _names_backward(name) else kernel.forward)


def is_backward(signature: Signature) -> bool:
    return _names_backward(signature.name)


def _names_backward(name: str) -> bool:
    return name.endswith(("_backward", "::bwd", "_bwd"))


def is_causal(signature: Signature) -> bool:
    """Return the boolean argument `is_causal`, which follows the probability of dropout or a mask's list.

    The lower-level memory-efficient kernels have a number for the kind of mask instead, 0 for none.
    """
    arguments = signature.arguments
    if signature.name in _MASK_TYPE_AT:
        return arguments[_MASK_TYPE_AT[signature.name] :][:1] in ([1], [2])
    if signature.name.startswith(ATTENTION_PACKAGES):
        return any(_flags(signature)[:1])
    for before, argument in pairwise(arguments):
        follows_number = isinstance(before, int | float) and not isinstance(before, bool)
        if isinstance(argument, bool) and (follows_number or isinstance(before, list)):
            return argument
    return False


def _is_deterministic(signature: Signature) -> bool:
    return is_backward(signature) and signature.name.startswith(ATTENTION_PACKAGES) and any(_flags(signature)[1:2])


def _flags(signature: Signature) -> list[bool]:
    return [argument for argument in signature.arguments if isinstance(argument, bool)]


def _has_pages(signature: Signature) -> bool:
    """Return whether a table of pages, an integer matrix, is among the tensors."""
    return any(spec.dtype == "int32" and len(spec.shape) == 2 for spec in signature.inputs[3:])


def _is_float8(signature: Signature) -> bool:
    return _query(signature).dtype.startswith("float8")


def _query(signature: Signature) -> TensorSpec:
    return signature.inputs[1 if is_backward(signature) else 0]


def _pair_flops(signature: Signature, qk_dim: int, v_dim: int) -> int:
    """Return the operations of a query with a key, as `trace.flops` counts them."""
    num_with_key, num_with_value = (3, 2) if is_backward(signature) else (1, 1)
    return 2 * (num_with_key * qk_dim + num_with_value * v_dim)


def _next_size(sizes: tuple[int, ...], dim: int) -> int:
    place = bisect_left(sizes, dim)
    return sizes[place] if place < len(sizes) else dim


def _queries_per_block(signature: Signature, shape: _Shape) -> int:
    tall = kernel_of(signature.name) == "flash3" and not is_backward(signature) and shape.padded_dim <= _TALL_BLOCK_HEAD
    usual = _TALL_BLOCK if tall else _BLOCK
    return min(usual, max(_SMALLEST_BLOCK, 1 << (shape.num_queries - 1).bit_length()))


def _head_share(dim: float, table: AttentionPass) -> float:
    """Return the speed with heads of `dim`, 1 at 128: small ones leave the matrix units idle between exponentials."""
    share = dim / (dim + table.head_ramp) * (_FULL_HEAD + table.head_ramp) / _FULL_HEAD
    return share * table.wide_head_share if dim > _WIDE_HEAD else share
