"""Fused attention: softmax(Q·Kᵀ)·V in one kernel that never writes the scores.

The arithmetic is that of `trace.flops`, which counts a causal mask's whole square: kernels skip the blocks above the
diagonal, so of n blocks a side they do (n + 1) / 2n. The share of the peak depends on the kernel (flash,
memory-efficient, cuDNN), on the pass, on how many keys a query meets (a block of queries starts and ends with work that
does not grow with the keys: as much as `ramp_keys` of them), and on the size of a head.

    time = waves · num_sms · block · (keys + ramp_keys) · FLOPs of a query with a key / (peak · share)

Dao 2023 (FlashAttention-2) shows these curves for A100 and H100.
"""

from itertools import pairwise
from math import ceil
from typing import ClassVar, cast

from sandtable.engine.compute.family import Basis, Family, names, slower_of
from sandtable.engine.compute.rates import best_rate
from sandtable.trace.flops import flops
from sandtable.trace.signature import Signature, TensorSpec

__all__ = ["Attention"]

_BLOCK = 128
_SMALLEST_BLOCK = 16
_FULL_HEAD = 128
_HEAD_RAMP = 16
_FLOAT32_SHARE = 0.5
"""Of the ordinary lanes' peak: float32 has only the memory-efficient kernel."""

_KERNELS = ("flash", "efficient", "cudnn")
_MASK_TYPE_AT = {"aten::_efficient_attention_forward": 9, "aten::_efficient_attention_backward": 14}


class Attention(Family):
    """Attention in one kernel; attention made of products and a softmax is costed as those."""

    name = "attention"
    operators: ClassVar[frozenset[str]] = names(
        "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward "
        "_scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward "
        "_scaled_dot_product_fused_attention_overrideable _scaled_dot_product_fused_attention_overrideable_backward "
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward "
        "_scaled_dot_product_attention_math _flash_attention_forward _flash_attention_backward "
        "_efficient_attention_forward _efficient_attention_backward "
        "_cudnn_attention_forward _cudnn_attention_backward"
    ) | {"transformer_engine::cudnn_attention_forward", "transformer_engine::cudnn_attention_backward"}

    def work_ns(self, signature: Signature) -> float:
        products_ns = self._products_ns(signature)
        bytes_ns = self.memory_ns(self.traffic_bytes(signature), self.streaming.elementwise_share)
        return self.streaming.kernel_ns * (2 if is_backward(signature) else 1) + slower_of(products_ns, bytes_ns)

    def _products_ns(self, signature: Signature) -> float:
        """Return the time of the blocks of queries, each with its keys and `ramp_keys` more, dealt out in waves."""
        num_rows, num_queries, head_dim = _queries(signature)
        total = flops(signature)
        if not total:
            return 0.0
        flops_per_pair = 2 * head_dim * (5 if is_backward(signature) else 2)
        key_blocks = ceil(total / (num_rows * num_queries * flops_per_pair) / _BLOCK)
        keys = _BLOCK * ((key_blocks + 1) / 2 if is_causal(signature) else key_blocks)
        block = min(_BLOCK, max(_SMALLEST_BLOCK, 1 << (num_queries - 1).bit_length()))
        waves = ceil(num_rows * ceil(num_queries / block) / self.device.num_sms)
        pairs = waves * self.device.num_sms * block * (keys + self.device.efficiency.attention.ramp_keys)
        head_share = 1.0 if kernel_of(signature) == "efficient" else _head_share(head_dim)
        return pairs * flops_per_pair * 1e9 / (self._rate(signature) * head_share)

    def basis(self, signature: Signature) -> Basis:
        """Return the basis: fits are to the memory-efficient kernel; flash and cuDNN follow published curves."""
        status = self.device.efficiency.attention.status
        return "nominal" if status == "fitted" and kernel_of(signature) != "efficient" else cast(Basis, status)

    def _rate(self, signature: Signature) -> float:
        """Return the operations per second for many keys and heads of 128."""
        rate = best_rate(self.device, _query(signature).dtype)
        if not rate.on_matrix_units and self.device.vendor != "cpu":
            return rate.peak * _FLOAT32_SHARE
        direction = "backward" if is_backward(signature) else "forward"
        share: float = getattr(self.device.efficiency.attention, f"{kernel_of(signature)}_{direction}_share")
        return rate.peak * share


def kernel_of(signature: Signature) -> str:
    """Return which kernel it is: flash, efficient or cudnn."""
    return next((kernel for kernel in _KERNELS if f"{kernel}_attention" in signature.name), "flash")


def is_backward(signature: Signature) -> bool:
    return signature.name.endswith("_backward")


def is_causal(signature: Signature) -> bool:
    """Return the boolean argument `is_causal`, which follows the probability of dropout or a mask's list.

    The lower-level memory-efficient kernels have a number for the kind of mask instead, 0 for none.
    """
    arguments = signature.arguments
    if signature.name in _MASK_TYPE_AT:
        return arguments[_MASK_TYPE_AT[signature.name] :][:1] in ([1], [2])
    for before, argument in pairwise(arguments):
        follows_number = isinstance(before, int | float) and not isinstance(before, bool)
        if isinstance(argument, bool) and (follows_number or isinstance(before, list)):
            return argument
    return False


def _queries(signature: Signature) -> tuple[int, int, int]:
    """Return (batch times heads, queries, head dim); the lower-level kernels have the sequence before the heads."""
    *batch, first, second, head_dim = _query(signature).shape
    heads, num_queries = (first, second) if "scaled_dot_product" in signature.name else (second, first)
    return (batch[0] if batch else 1) * heads, num_queries, head_dim


def _query(signature: Signature) -> TensorSpec:
    return signature.inputs[1 if is_backward(signature) else 0]


def _head_share(head_dim: int) -> float:
    """Return the speed of small heads, which give the matrix units little to do between two exponentials: 0.9 at 64.

    The memory-efficient kernels do not keep the matrix units as busy in the first place, and large heads crowd their
    registers: they are as fast at 64.
    """
    return min(1.0, head_dim / (head_dim + _HEAD_RAMP) * (_FULL_HEAD + _HEAD_RAMP) / _FULL_HEAD)
