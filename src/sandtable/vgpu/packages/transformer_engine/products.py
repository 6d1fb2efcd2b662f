"""Matrix products: cuBLAS's, on data as it is or in FP8, with what is fused into them.

The output is B · A with the last dim of B replaced, as in torch's `linear(B, A)`. Bias, GELU and accumulation into the
output (a weight's `main_grad`) are part of the kernel. A grouped product is one cuBLAS kernel per group, dealt to four
streams, which a grouped kernel equals but for its launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from sandtable.trace.work import Work
from sandtable.vgpu.packages.transformer_engine.kernels import launch, present
from sandtable.vgpu.packages.transformer_engine.quantization import buffers, new_tensor, quantize, torch_type

__all__ = [
    "generic_gemm",
    "get_cublasLt_version",
    "get_cudnn_version",
    "get_grouped_gemm_setup_workspace_size",
    "get_num_cublas_streams",
    "te_general_grouped_gemm",
]


def generic_gemm(
    A: Any,
    transA: bool,
    B: Any,
    transB: bool,
    D: Any,
    quantizer: Any,
    output_dtype: Any,
    bias: Tensor | None,
    bias_type: Any,
    gelu: bool,
    gelu_in: Tensor | None,
    grad: bool,
    workspace: Tensor,
    workspace_size: int,
    accumulate: bool,
    use_split_accumulator: bool,
    comm_overlap: Any = None,
    comm_type: Any = None,
    extra_output: Tensor | None = None,
    bulk_overlap: bool = False,
    alpha: float = 1.0,
    beta: float | None = None,
) -> tuple[Any, Tensor | None, Tensor | None, Tensor | None]:
    """Return the product, a bias's gradient, the input of GELU and what communication wrote, each if there is one."""
    dtype = torch_type(output_dtype) if output_dtype is not None else (B if _is_fp8(A) else A).dtype
    shape, product = shape_of(A, transA, B, transB)
    fused_cast = quantizer is None or (_is_fp8(A) and type(quantizer).__name__ == "Float8Quantizer")
    output = D if D is not None else new_tensor(shape, dtype, quantizer if fused_cast else None)
    bias_gradient = torch.empty(B.size(-1), dtype=dtype, device="cuda") if bias is not None and grad else None
    gelu_input = torch.empty(shape, dtype=dtype, device="cuda") if gelu and not grad else None
    work = Work(family="gemm", products=((1, *product),), dtype=_arithmetic(A), basis="fitted")

    inputs = [*_operand(A, transA), *_operand(B, not transB), None if grad else bias, gelu_in if grad else None]
    if accumulate:
        inputs.extend(buffers(output))
    outputs = [*buffers(output), bias_gradient, gelu_input]
    if comm_overlap is not None:
        comm_overlap.overlap(
            lambda share: launch("gemm", inputs, outputs, _share_of(work, share)),
            kind=comm_type,
            bulk=bulk_overlap,
            output=extra_output,
            num_bytes=prod(shape) * 2,
        )
    elif prod(product):
        launch("gemm", inputs, outputs, work)
    if not fused_cast:
        output = quantize(output, quantizer)
    return output, bias_gradient, gelu_input, extra_output


def shape_of(a: Any, trans_a: bool, b: Any, trans_b: bool) -> tuple[tuple[int, ...], tuple[int, int, int]]:
    """Return the shape of the output and (rows, columns, length) of the product."""
    *outer_a, columns_a = a.size()
    *outer_b, columns_b = b.size()
    rows_a, rows_b = prod(outer_a), prod(outer_b)
    columns, length = (rows_a, columns_a) if trans_a else (columns_a, rows_a)
    rows = (columns_b,) if trans_b else tuple(outer_b)
    assert length == (rows_b if trans_b else columns_b), f"product of {tuple(a.size())} and {tuple(b.size())}"
    return (*rows, columns), (prod(rows), columns, length)


def _share_of(work: Work, share: int) -> Work:
    """Return the work on one of `share` equal chunks of rows."""
    ((batch, m, n, k),) = work.products
    return Work(family="gemm", products=((batch, -(-m // share), n, k),), dtype=work.dtype, basis=work.basis)


def _operand(tensor: Any, rowwise: bool) -> list[Tensor]:
    """Return what a product reads: of a quantized tensor one of its two copies, and its scales."""
    if type(tensor) in (Tensor, torch.nn.Parameter):
        return [tensor]
    if hasattr(tensor, "_transpose"):
        data = tensor._data if rowwise or tensor._transpose is None else tensor._transpose
        return present([data, tensor._scale_inv])
    if hasattr(tensor, "_rowwise_data"):
        kind = "rowwise" if rowwise else "columnwise"
        return present([getattr(tensor, f"_{kind}_data"), getattr(tensor, f"_{kind}_scale_inv")])
    return [tensor]


def _is_fp8(tensor: Any) -> bool:
    return hasattr(tensor, "_fp8_dtype") or hasattr(tensor, "_fp4_dtype")


def _arithmetic(tensor: Any) -> str:
    """Return the type of the arithmetic, which for quantized data is not that of the bytes."""
    if hasattr(tensor, "_fp8_dtype"):
        return "float8_e4m3fn"
    if hasattr(tensor, "_fp4_dtype"):
        return "float4_e2m1fn_x2"
    return str(tensor.dtype).removeprefix("torch.")


def te_general_grouped_gemm(
    A: Sequence[Any],
    transA: bool,
    B: Sequence[Any],
    transB: bool,
    D: Sequence[Tensor] | None,
    D_type: Any,
    m_splits: Sequence[int],
    bias: Sequence[Tensor],
    bias_type: Any,
    single_output: bool,
    pre_gelu_out: Sequence[Tensor],
    grad: bool,
    workspace: Sequence[Tensor],
    workspace_size: int,
    accumulate: bool,
    use_split_accumulator: bool,
    math_sm_count: int,
) -> Sequence[Tensor]:
    """Compute one product per expert; `m_splits` of their rows may be zero."""
    shapes = [shape_of(a, transA, b, transB) for a, b in zip(A, B, strict=True)]
    products = tuple((1, *product) for _, product in shapes if prod(product))
    outputs = D
    if outputs is None:
        outputs = [torch.empty(shape, dtype=torch_type(D_type), device="cuda") for shape, _ in shapes]
    if products:
        inputs = [part for a in A for part in _operand(a, transA)] + [
            part for b in B for part in _operand(b, not transB)
        ]
        added = list(bias) if not grad else []
        written = [*outputs, *pre_gelu_out, *(bias if grad else [])]
        launch(
            "grouped_gemm",
            [*inputs, *added, *(outputs if accumulate else [])],
            [tensor for tensor in written if tensor.numel()],
            Work(
                family="gemm",
                products=products,
                dtype=_arithmetic(A[0]),
                num_kernels=max(1, len(products) // get_num_cublas_streams()),
                basis="fitted",
            ),
        )
    return bias


def get_num_cublas_streams() -> int:
    """Return how many streams products of a group are dealt to."""
    return 4


def get_grouped_gemm_setup_workspace_size(num_tensors: int) -> int:
    return 1024 * num_tensors


def get_cublasLt_version() -> int:
    """Return CUDA 12.9's: newer ones have grouped kernels for Blackwell that this file does not describe."""
    return 120900


def get_cudnn_version() -> int:
    """Return 9.14, which has all kinds of fused attention."""
    return 91400
