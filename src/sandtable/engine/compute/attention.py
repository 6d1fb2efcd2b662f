"""Fused attention: softmax(Q·Kᵀ)·V in one kernel that never writes the scores.

The arithmetic is that of `trace.flops`, which counts a causal mask's whole square: kernels skip the blocks above the
diagonal, so of n blocks a side they do (n + 1) / 2n. How much of the peak is reached depends on the kernel (flash,
memory-efficient, cuDNN), on the pass, on how many keys a query meets (each block of queries starts and ends with work
that the number of keys does not grow: half speed at `ramp_keys`), and on the size of a head.

Dao 2023 (FlashAttention-2) shows these curves for A100 and H100.
"""

from itertools import pairwise
from math import ceil
from typing import ClassVar, cast

from sandtable.engine.compute.family import Basis, Family, names
from sandtable.engine.compute.gemm import slower_of
from sandtable.engine.compute.rates import best_rate
from sandtable.trace.flops import flops
from sandtable.trace.signature import Signature, TensorSpec

__all__ = ["Attention"]

_BLOCK = 128
_FULL_HEAD = 128
_HEAD_RAMP = 16
_FLOAT32_SHARE = 0.5
"""Of the ordinary lanes' peak: float32 has only the memory-efficient kernel."""

_KERNELS = ("flash", "efficient", "cudnn")
_MASK_TYPE_AT = {"aten::_efficient_attention_forward": 9, "aten::_efficient_attention_backward": 14}


class Attention(Family):
    """Attention in one kernel; one made of products and a softmax is costed as those."""

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
    )

    def work_ns(self, signature: Signature) -> float:
        query, key = _query_key(signature)
        batch_heads, num_queries, head_dim = _sizes(query, signature)
        num_keys = _sizes(key, signature)[1]
        work = float(flops(signature))
        mean_keys = float(num_keys)
        if is_causal(signature):
            blocks = max(1, ceil(num_keys / _BLOCK))
            work, mean_keys = work * (blocks + 1) / (2 * blocks), num_keys / 2
        rate = self._rate(signature) * _head_share(head_dim) * mean_keys
        rate /= mean_keys + self.device.efficiency.attention.ramp_keys
        rate *= self._busy_share(batch_heads * ceil(num_queries / _BLOCK))
        products_ns = work * 1e9 / rate if rate else 0.0
        bytes_ns = self.memory_ns(self.traffic_bytes(signature), self.streaming.elementwise_share)
        return self.streaming.kernel_ns * (2 if is_backward(signature) else 1) + slower_of(products_ns, bytes_ns)

    def basis(self, signature: Signature) -> Basis:
        """Fits are to flash attention on matrix units."""
        status = self.device.efficiency.attention.status
        return "nominal" if status == "fitted" and kernel_of(signature) != "flash" else cast(Basis, status)

    def _rate(self, signature: Signature) -> float:
        """Operations a second for many keys and heads of 128."""
        rate = best_rate(self.device, _query_key(signature)[0].dtype)
        if not rate.on_matrix_units:
            return rate.peak * _FLOAT32_SHARE
        direction = "backward" if is_backward(signature) else "forward"
        share: float = getattr(self.device.efficiency.attention, f"{kernel_of(signature)}_{direction}_share")
        return rate.peak * share

    def _busy_share(self, num_blocks: int) -> float:
        """Blocks of queries are dealt to the multiprocessors in waves; the last may be short."""
        num_sms = self.device.num_sms
        return num_blocks / (ceil(num_blocks / num_sms) * num_sms) if num_blocks else 1.0


def kernel_of(signature: Signature) -> str:
    """Whose kernel it is: flash, efficient or cudnn."""
    return next((kernel for kernel in _KERNELS if f"{kernel}_attention" in signature.name), "flash")


def is_backward(signature: Signature) -> bool:
    return signature.name.endswith("_backward")


def is_causal(signature: Signature) -> bool:
    """The yes-or-no argument `is_causal`: it stands right after the probability of dropout, or after a mask's list.

    The lower-level memory-efficient kernels have a number for the kind of mask instead, 0 for none.
    """
    arguments = signature.arguments
    if signature.name in _MASK_TYPE_AT:
        return arguments[_MASK_TYPE_AT[signature.name]] in (1, 2)
    for before, argument in pairwise(arguments):
        follows_number = isinstance(before, int | float) and not isinstance(before, bool)
        if isinstance(argument, bool) and (follows_number or isinstance(before, list)):
            return argument
    return False


def _query_key(signature: Signature) -> tuple[TensorSpec, TensorSpec]:
    start = 1 if is_backward(signature) else 0
    return signature.inputs[start], signature.inputs[start + 1]


def _sizes(spec: TensorSpec, signature: Signature) -> tuple[int, int, int]:
    """(batch times heads, sequence, dim); the lower-level kernels have the sequence before the heads."""
    *batch, first, second, dim = spec.shape
    heads, sequence = (first, second) if "scaled_dot_product" in signature.name else (second, first)
    return (batch[0] if batch else 1) * heads, sequence, dim


def _head_share(head_dim: int) -> float:
    """Small heads give the matrix units little to do between two exponentials: 1 at 128, 0.9 at 64."""
    return min(1.0, head_dim / (head_dim + _HEAD_RAMP) * (_FULL_HEAD + _HEAD_RAMP) / _FULL_HEAD)
