"""DeepSpeed's quantizer: blocks of numbers as 8 or 4 bits and a scale each, as ZeRO++ sends weights and gradients.

Each kernel reads its tensors once and writes its results once; a reduction sums what the ranks of a node sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from sandtable.trace.work import Work
from sandtable.vgpu.packages.kernels import record_kernel

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["QUANTIZER"]

_SYMMETRIC, _ASYMMETRIC = 0, 1


def _quantize(values: Tensor, groups: int, num_bits: int, kind: int) -> tuple[Tensor, Tensor]:
    shape = (*values.shape[:-1], values.shape[-1] * num_bits // 8)
    return _launched("quantize", [values], _integers(values, shape), _scales(values, groups, kind))


def _swizzle_quant(values: Tensor, groups: int, num_bits: int, kind: int, *layout: int) -> tuple[Tensor, Tensor]:
    """Quantize values in the order in which ranks of a node, then nodes, exchange them."""
    shape = (values.numel() * num_bits // 8,)
    return _launched("swizzle_quant", [values], _integers(values, shape), _scales(values, groups, kind))


def _quantized_reduction(
    values: Tensor, scales: Tensor, in_groups: int, out_groups: int, num_bits: int, kind: int, devices_per_node: int
) -> tuple[Tensor, Tensor]:
    shape = (*values.shape[:-1], values.shape[-1] // devices_per_node)
    results = _integers(values, shape), _scales(values, out_groups, kind)
    return _launched("quantized_reduction", [values, scales], *results)


def _dequantize(dtype_name: str) -> Callable[..., Tensor]:
    def dequantize(values: Tensor, scales: Tensor, groups: int, num_bits: int, kind: int) -> Tensor:
        import torch

        dtype: torch.dtype = getattr(torch, dtype_name)
        output = values.new_empty((*values.shape[:-1], values.shape[-1] * 8 // num_bits), dtype=dtype)
        record_kernel("deepspeed::dequantize", inputs=(values, scales), outputs=(output,), work=Work())
        return output

    return dequantize


def _launched(name: str, inputs: list[Tensor], output: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    record_kernel(f"deepspeed::{name}", inputs=inputs, outputs=(output, scales), work=Work())
    return output, scales


def _integers(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    import torch

    return values.new_empty(shape, dtype=torch.int8)


def _scales(values: Tensor, groups: int, kind: int) -> Tensor:
    import torch

    return values.new_empty((groups, 2 if kind == _ASYMMETRIC else 1), dtype=torch.float32)


QUANTIZER: Mapping[str, Any] = {
    "Symmetric": _SYMMETRIC,
    "Asymmetric": _ASYMMETRIC,
    "quantize": _quantize,
    "dequantize": _dequantize("float16"),
    "dequantize_fp32": _dequantize("float32"),
    "swizzle_quant": _swizzle_quant,
    "quantized_reduction": _quantized_reduction,
}
"""The module that the op builder would build."""
