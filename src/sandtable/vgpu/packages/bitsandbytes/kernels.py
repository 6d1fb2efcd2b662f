"""Kernels of bitsandbytes: what they return follows from the operators' own shapes, their work from their arguments.

Reading weights of 4 bits is a table look-up per element beside the bytes, which the memory outruns; products are those
of their type. Outliers, which some operators treat apart, depend on values: there are none.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from sandtable.trace.work import Work
from sandtable.vgpu.packages.kernels import record_kernel

__all__ = ["implement_all"]

_NAMESPACE = "bitsandbytes"


def implement_all() -> Any:
    """Implement all operators of the package for CUDA; return the library, which must live as long as they do."""
    library: Any = torch.library.Library(_NAMESPACE, "IMPL")  # type: ignore[no-untyped-call]
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith(f"{_NAMESPACE}::"):
            name = schema.name.partition("::")[2]
            overload = schema.overload_name
            operator = getattr(getattr(torch.ops.bitsandbytes, name), overload or "default")
            library.impl(f"{name}.{overload}" if overload else name, _kernel(name, operator), "CUDA")
    return library


def _kernel(name: str, operator: Any) -> Callable[..., Any]:
    parameters = operator._schema.arguments
    written = [p.name for p in parameters if p.alias_info is not None and p.alias_info.is_write]

    def run(*args: Any, **options: Any) -> Any:
        given = dict(zip((p.name for p in parameters), args, strict=False), **options)
        shapes = _SHAPES.get(name)
        if written:
            outputs: Any = None
        elif shapes is not None:
            outputs = shapes(**given)
        else:
            to_meta = tree_map_only(Tensor, lambda x: x.to("meta"), (args, options))
            on_meta = operator(*to_meta[0], **to_meta[1])
            outputs = tree_map_only(Tensor, lambda x: _like(x, args), on_meta)
        inputs = [value for value in given.values() if isinstance(value, Tensor)]
        results = [value for value in tree_leaves(outputs) if isinstance(value, Tensor)]
        results += [given[p] for p in written if isinstance(given.get(p), Tensor)]
        work = _WORK[name](**given) if name in _WORK else Work()
        record_kernel(f"{_NAMESPACE}::{name}", inputs=inputs, outputs=results, work=work)
        return outputs

    return run


def _like(meta: Tensor, args: tuple[Any, ...]) -> Tensor:
    device = next(arg.device for arg in args if isinstance(arg, Tensor))
    return torch.empty_strided(meta.shape, meta.stride(), dtype=meta.dtype, device=device)


def _vectorwise_quant(A: Tensor, threshold: float = 0.0) -> tuple[Tensor, Tensor, Tensor | None]:  # noqa: N803
    rows = A.new_empty(prod(A.shape[:-1]), dtype=torch.float32)
    outliers = A.new_empty(0, dtype=torch.int64) if threshold else None
    return torch.empty_like(A, dtype=torch.int8), rows, outliers


def _mixed_scaled_mm(A: Tensor, CA: Tensor, CB: Tensor, **_: Any) -> tuple[Tensor, Tensor | None]:  # noqa: N803
    return A.new_empty((*CA.shape[:-1], CB.shape[0])), None


def _product(A: Tensor, B: Tensor, **_: Any) -> Work:  # noqa: N803
    """Multiply integers of 8 bits: A (tokens, k) with B (n, k)."""
    products = ((1, prod(A.shape[:-1]), B.shape[0], A.shape[-1]),)
    return Work(family="gemm", products=products, dtype="int8")


def _mixed_product(A: Tensor, CA: Tensor, CB: Tensor, **_: Any) -> Work:  # noqa: N803
    return _product(CA, CB)


def _product_of_4_bits(A: Tensor, B: Tensor, shapeB: Any, **_: Any) -> Work:  # noqa: N803
    """Multiply with weights of 4 bits, read as they are stored."""
    products = ((1, prod(A.shape[:-1]), shapeB[0], A.shape[-1]),)
    return Work(family="gemm", products=products, dtype=str(A.dtype).removeprefix("torch."))


_SHAPES: dict[str, Callable[..., Any]] = {
    "int8_vectorwise_quant": _vectorwise_quant,
    "int8_mixed_scaled_mm": _mixed_scaled_mm,
}
_WORK: dict[str, Callable[..., Work]] = {
    "int8_linear_matmul": _product,
    "int8_scaled_mm": _product,
    "int8_mixed_scaled_mm": _mixed_product,
    "gemm_4bit": _product_of_4_bits,
    "gemv_4bit": _product_of_4_bits,
}
