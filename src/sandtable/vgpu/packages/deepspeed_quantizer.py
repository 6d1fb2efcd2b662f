"""DeepSpeed's quantizers: blocks of numbers as few bits and a scale each.

`quantizer` makes integers of 8 or 4 bits, as ZeRO++ sends weights and gradients; `fp_quantizer` floats of 12 to 4 bits,
as frozen weights of `OptimizedLinear` and LoRA are stored. Each kernel reads its tensors once and writes its results
once; a reduction sums what the ranks of a node sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from sandtable.trace.work import Work
from sandtable.vgpu.packages.kernels import record_kernel

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["FLOAT_QUANTIZER", "QUANTIZER"]

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


def _quantize_floats(quantized: Tensor, values: Tensor, *settings: int) -> Tensor:
    """Fill rows of quantized values, each with its scale behind them."""
    record_kernel("deepspeed::fp_quantize", inputs=(values,), outputs=(quantized,), work=Work())
    return quantized


def _dequantize_floats(values: Tensor, quantized: Tensor, *settings: int) -> None:
    record_kernel("deepspeed::fp_dequantize", inputs=(quantized,), outputs=(values,), work=Work())


def _dequantize_some(values: Tensor, quantized: Tensor, indexes: Tensor, *settings: int) -> None:
    """Read only the rows of the matrices that are wanted, such as those of some experts."""
    share = values.numel() * quantized.element_size() // values.element_size()
    work = Work(family="indexing", bytes_read=min(share, quantized.nbytes) + indexes.nbytes)
    record_kernel("deepspeed::fp_selective_dequantize", inputs=(quantized, indexes), outputs=(values,), work=work)


def _scales_of_floats(quantized: Tensor, groups: int) -> Tensor:
    import torch

    scales = quantized.new_empty(groups, dtype=torch.float32)
    work = Work(family="indexing", bytes_read=scales.nbytes)
    record_kernel("deepspeed::fp_get_scales", inputs=(quantized,), outputs=(scales,), work=work)
    return scales


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
"""The module that the op builder `quantizer` would build."""

FLOAT_QUANTIZER: Mapping[str, Any] = {
    "quantize": _quantize_floats,
    "dequantize": _dequantize_floats,
    "selective_dequantize": _dequantize_some,
    "get_scales": _scales_of_floats,
}
"""The same of `fp_quantizer`."""
