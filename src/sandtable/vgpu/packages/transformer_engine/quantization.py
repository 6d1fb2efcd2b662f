"""Casts to FP8: one kernel that writes the data and, where products need it, its transpose.

Delayed scaling knows the scale beforehand and notes the largest value on the way. Current scaling reads the tensor once
more before, for its largest value, and may exchange that between ranks. Scaling by blocks finds each block's scale in
the same kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from sandtable.trace.work import Work
from sandtable.vgpu.packages.transformer_engine.kernels import launch, present

__all__ = [
    "bgrad_quantize",
    "bulk_allocate",
    "compute_amax",
    "create_empty_quantized_tensor",
    "dequantize",
    "fp8_block_scaling_compute_partial_amax",
    "fp8_block_scaling_partial_cast",
    "fp8_transpose",
    "fused_amax_and_scale_update_after_reduction",
    "multi_tensor_quantize",
    "multi_tensor_swizzle_scales_for_gemm_",
    "multi_tensor_swizzle_scales_for_gemm_unchecked_",
    "mxfp8_scaling_compute_partial_amax",
    "mxfp8_scaling_partial_cast",
    "quantize",
    "split_quantize",
    "swap_first_dims",
    "swizzle_scales_for_gemm_",
]

_TORCH_TYPES = {
    0: torch.uint8,
    2: torch.int32,
    4: torch.float32,
    5: torch.float16,
    6: torch.bfloat16,
    7: torch.float8_e4m3fn,
    8: torch.float8_e5m2,
}


def torch_type(dtype: Any) -> torch.dtype:
    """Return torch's type for one of theirs, or for torch's own."""
    return dtype if isinstance(dtype, torch.dtype) else _TORCH_TYPES[int(dtype)]


def buffers(tensor: Any) -> list[Tensor]:
    """Return the plain tensors that a tensor consists of: itself, or a quantized one's data and scales."""
    if type(tensor) in (Tensor, torch.nn.Parameter):
        return [tensor]
    inner = [getattr(tensor, name, None) for name in _BUFFERS]
    return [part for part in inner if isinstance(part, Tensor)] or [tensor]


_BUFFERS = ("_data", "_transpose", "_scale_inv", "_rowwise_data", "_rowwise_scale_inv", "_columnwise_data",
            "_columnwise_scale_inv", "_amax_rowwise", "_amax_columnwise")  # fmt: skip


def is_current_scaling(quantizer: Any) -> bool:
    """Return whether the scale depends on the whole tensor that is cast."""
    return type(quantizer).__name__ in ("Float8CurrentScalingQuantizer", "NVFP4Quantizer")


def new_tensor(shape: Sequence[int], dtype: torch.dtype, quantizer: Any, device: Any = "cuda") -> Any:
    """Allocate a tensor of `shape`, quantized if there is a quantizer."""
    if quantizer is None:
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    return create_empty_quantized_tensor(quantizer, shape, dtype, device, False)


def create_empty_quantized_tensor(
    quantizer: Any, shape: Sequence[int], dtype: torch.dtype, device: Any, pin_memory: bool
) -> Any:
    shape = tuple(shape)
    if type(quantizer).__name__ == "Float8Quantizer":
        return _empty_delayed(quantizer, shape, dtype, device)
    specs = dict(quantizer.inner_tensor_specs(shape))
    if type(quantizer).__name__ == "NVFP4Quantizer":  # the last dim, halved, would be none of a batch of one
        flat = quantizer.inner_tensor_specs((prod(shape[:-1]), shape[-1]))
        specs |= {name: spec for name, spec in flat.items() if "columnwise" in name}
    inner = {name: torch.empty(size, dtype=inner_type, device=device) for name, (size, inner_type) in specs.items()}
    metadata = quantizer.create_metadata(shape, dtype=dtype, requires_grad=False)
    strides = torch.empty(shape, device="meta").stride()
    return metadata["cls"].__tensor_unflatten__(inner, metadata, shape, strides)


def _empty_delayed(quantizer: Any, shape: tuple[int, ...], dtype: torch.dtype, device: Any) -> Any:
    """Allocate a tensor with one scale that is known beforehand."""
    from transformer_engine.pytorch.tensor.float8_tensor import Float8Tensor
    from transformer_engine.pytorch.tensor.storage.float8_tensor_storage import Float8TensorStorage

    one_copy = torch.cuda.get_device_capability() >= (10, 0)  # from Blackwell on, products need no transpose
    data = torch.empty(shape, dtype=torch.uint8, device=device) if quantizer.rowwise_usage or one_copy else None
    columns = None
    if quantizer.columnwise_usage and not one_copy:
        columns = torch.empty((shape[-1], *shape[:-1]), dtype=torch.uint8, device=device)
    options = {
        "data": data,
        "data_transpose": columns,
        "fp8_scale_inv": torch.empty(1, dtype=torch.float32, device=device),
        "fp8_dtype": quantizer.dtype,
        "quantizer": quantizer,
    }
    if quantizer.internal:
        return Float8TensorStorage(**options, fake_dtype=dtype)
    return Float8Tensor(shape=shape, dtype=dtype, **options)


def quantize(tensor: Any, quantizer: Any, output: Any = None, noop: Tensor | None = None) -> Any:
    tensor = tensor.dequantize() if hasattr(tensor, "dequantize") and len(buffers(tensor)) > 1 else tensor
    if output is None:
        output = new_tensor(tensor.shape, tensor.dtype, quantizer, tensor.device)
    if not tensor.numel():
        return output
    if is_current_scaling(quantizer):
        _find_largest(tensor, quantizer)
    launch("quantize", [tensor], buffers(output), "elementwise")
    if hasattr(output, "_transpose_invalid"):
        output._transpose_invalid = output._transpose is None
    return output


def _find_largest(tensor: Tensor, quantizer: Any) -> None:
    largest = torch.empty(1, dtype=torch.float32, device=tensor.device)
    launch("compute_amax", [tensor], [largest], "reduction")
    if getattr(quantizer, "with_amax_reduction", False):
        group = quantizer.amax_reduction_group
        torch.distributed.all_reduce(largest, op=torch.distributed.ReduceOp.MAX, group=group)


def compute_amax(tensor: Tensor, amax: Tensor) -> None:
    launch("compute_amax", [tensor], [amax], "reduction")


def dequantize(input: Any, otype: Any) -> Tensor:
    output = torch.empty(tuple(input.shape), dtype=torch_type(otype), device=input.device)
    launch("dequantize", buffers(input), [output], "elementwise")
    return output


def bgrad_quantize(input: Tensor, quantizer: Any) -> tuple[Tensor, Any]:
    """Cast and sum over the rows, which gives a bias its gradient, in one kernel and a small reduction."""
    bias_gradient = torch.empty(input.shape[-1], dtype=input.dtype, device=input.device)
    output = input if quantizer is None else new_tensor(input.shape, input.dtype, quantizer, input.device)
    if quantizer is not None and is_current_scaling(quantizer):
        _find_largest(input, quantizer)
    written = [] if quantizer is None else buffers(output)
    launch("bgrad_quantize", [input], [bias_gradient, *written], Work(family="elementwise", num_kernels=2))
    return bias_gradient, output


def multi_tensor_quantize(tensor_list: Sequence[Tensor], quantizer_list: Sequence[Any]) -> list[Any]:
    """Cast many tensors in one kernel."""
    outputs = [
        new_tensor(tensor.shape, tensor.dtype, quantizer, tensor.device)
        for tensor, quantizer in zip(tensor_list, quantizer_list, strict=True)
    ]
    for tensor, quantizer in zip(tensor_list, quantizer_list, strict=True):
        if is_current_scaling(quantizer) and tensor.numel():
            _find_largest(tensor, quantizer)
    written = [buffer for output in outputs for buffer in buffers(output)]
    if any(tensor.numel() for tensor in tensor_list):
        launch("multi_tensor_quantize", tensor_list, written, "elementwise")
    return outputs


def split_quantize(
    tensor: Tensor, split_sections: Sequence[int], quantizer_list: Sequence[Any], disable_bulk_allocation: bool = False
) -> list[Any]:
    parts = torch.split(tensor.view(-1, tensor.shape[-1]), list(split_sections))
    return multi_tensor_quantize(parts, quantizer_list)


def bulk_allocate(
    shapes: Sequence[Sequence[int]], dtypes: Sequence[torch.dtype], device: Any = None, alignments: Any = None
) -> list[Tensor]:
    return [
        torch.empty(tuple(shape), dtype=dtype, device=device or "cuda")
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]


def fp8_transpose(input: Tensor, dtype: Any, *, out: Tensor | None = None) -> Tensor:
    if out is None:
        out = torch.empty((input.shape[-1], *input.shape[:-1]), dtype=torch.uint8, device=input.device)
    launch("fp8_transpose", [input], [out], "copy")
    return out


def swap_first_dims(tensor: Tensor, *, out: Tensor | None = None) -> Tensor:
    if out is None:
        out = torch.empty((tensor.shape[1], tensor.shape[0], *tensor.shape[2:]), dtype=tensor.dtype, device="cuda")
    launch("swap_first_dims", [tensor], [out], "copy")
    return out


def fused_amax_and_scale_update_after_reduction(
    amax_reduction_buffer: Tensor,
    amax_histories: Sequence[Tensor],
    scales: Sequence[Tensor],
    amax_compute_algo: str,
    fp8_dtype: Any,
    margin: float,
) -> None:
    """Update the history of largest values and the scales, all in one kernel."""
    inputs = [amax_reduction_buffer, *amax_histories]
    launch("fused_amax_and_scale_update", inputs, [*amax_histories, *scales], "elementwise")


def swizzle_scales_for_gemm_(tensor: Any) -> None:
    """Bring scales of blocks into the order in which products read them."""
    scales = present(getattr(tensor, name, None) for name in ("_rowwise_scale_inv", "_columnwise_scale_inv"))
    launch("swizzle_scales", scales, scales, "copy")
    tensor._with_gemm_swizzled_scales = True


def multi_tensor_swizzle_scales_for_gemm_(tensors: Iterable[Any], rowwise_usage: bool, columnwise_usage: bool) -> None:
    for tensor in tensors:
        swizzle_scales_for_gemm_(tensor)


multi_tensor_swizzle_scales_for_gemm_unchecked_ = multi_tensor_swizzle_scales_for_gemm_


def fp8_block_scaling_compute_partial_amax(tensor: Tensor, amax: Tensor, *place: int) -> None:
    launch("fp8_block_scaling_compute_partial_amax", [tensor], [amax], "reduction")


def fp8_block_scaling_partial_cast(tensor: Tensor, out: Tensor, scale: Tensor, *place: Any) -> None:
    launch("fp8_block_scaling_partial_cast", [tensor, scale], [out], "elementwise")


def mxfp8_scaling_compute_partial_amax(
    input: Tensor, amax_rowwise: Tensor, amax_colwise: Tensor, *place: int, **options: int
) -> None:
    launch("mxfp8_scaling_compute_partial_amax", [input], [amax_rowwise, amax_colwise], "reduction")


def mxfp8_scaling_partial_cast(
    input: Tensor, output_rowwise: Tensor, output_colwise: Tensor, *rest: Any, **options: Any
) -> None:
    launch("mxfp8_scaling_partial_cast", [input], [output_rowwise, output_colwise], "elementwise")
