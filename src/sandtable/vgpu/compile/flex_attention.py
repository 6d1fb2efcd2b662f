"""Flex attention: Inductor would write one kernel for it, forward and backward, which skips the blocks of its mask.

Here its lowering calls an operator of ours, which records one launch with the arithmetic of the blocks that are left
(`attention_mask`).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from sandtable.trace.work import Work
from sandtable.vgpu.compile.attention_mask import (
    causal_density,
    density_of_values,
    function_of,
    mask_code,
    mask_density,
)
from sandtable.vgpu.packages.kernels import record_kernel

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["lower_flex_attention"]

_FORWARD_SCHEMA = (
    "(Tensor query, Tensor key, Tensor value, Tensor[] others, str mask, float density) -> (Tensor, Tensor, Tensor)"
)
_BACKWARD_SCHEMA = (
    "(Tensor query, Tensor key, Tensor value, Tensor out, Tensor grad_out, Tensor[] others, str mask, float density)"
    " -> (Tensor, Tensor, Tensor)"
)

_FORWARD_PRODUCTS, _BACKWARD_PRODUCTS = 2, 5
"""Matrix products per pair of query and key; the backward pass computes the scores again."""


def lower_flex_attention(module: ModuleType) -> None:
    """Have Inductor lower flex attention to our operators, on the card."""
    import torch
    from torch._inductor.lowering import fallback_handler, lowerings

    handle: Any = fallback_handler
    forward, backward = (handle(operator, add_to_fallback_set=False) for operator in _operators())
    hops = torch.ops.higher_order
    before = lowerings[hops.flex_attention], lowerings[hops.flex_attention_backward]

    def lower_forward(query: Any, key: Any, value: Any, *rest: Any, **options: Any) -> Any:
        if query.get_device().type != "cuda":
            return before[0](query, key, value, *rest, **options)
        return forward(query, key, value, *_mask(rest[1], query, key, rest[5:6]))

    def lower_backward(query: Any, key: Any, value: Any, *rest: Any, **options: Any) -> Any:
        if query.get_device().type != "cuda":
            return before[1](query, key, value, *rest, **options)
        out, _, grad_out, _, _, _, block_mask, *_ = rest
        others = rest[9] if len(rest) > 9 else ()
        gradients = backward(query, key, value, out, grad_out, *_mask(block_mask, query, key, rest[10:11]))
        return (*gradients, tuple(None for _ in others))

    lowerings[hops.flex_attention] = lower_forward
    lowerings[hops.flex_attention_backward] = lower_backward


def _mask(block_mask: Any, query: Any, key: Any, others: Sequence[Any]) -> tuple[list[Any], str, float]:
    """Return the tensors that a mask reads, its code, and its density if what they hold is not known."""
    from torch._inductor.ir import TensorBox
    from torch._inductor.virtualized import V

    num_queries, num_keys = (int(V.graph.sizevars.optimization_hint(node.get_size()[-2])) for node in (query, key))
    graph = getattr(block_mask[-1], "graph_module", None)
    unknown: tuple[list[Any], str, float] = [], "", causal_density(num_queries)
    if graph is None:
        return unknown
    if len([node for node in graph.graph.nodes if node.op == "placeholder"]) > 4:
        tensors = list(others[0]) if others else []
        return (tensors, mask_code(graph), unknown[2]) if all(isinstance(t, TensorBox) for t in tensors) else unknown
    try:
        code = mask_code(graph)
        return [], "", mask_density(function_of(code) if code else graph, num_queries, num_keys)
    except Exception:  # whatever a mask may do that only a card can
        return unknown


def _operators() -> tuple[Any, Any]:
    """Define the operators, once per process."""
    import torch

    if not hasattr(torch.ops.sandtable, "flex_attention"):

        @torch.library.custom_op("sandtable::flex_attention", mutates_args=(), schema=_FORWARD_SCHEMA)
        def forward(
            query: Tensor, key: Tensor, value: Tensor, others: list[Tensor], mask: str, density: float
        ) -> tuple[Tensor, Tensor, Tensor]:
            results = _forward_results(query, value)
            known = density_of_values(mask, query, key, others)
            work = _work(query, key, value, known, density, num_products=_FORWARD_PRODUCTS)
            record_kernel("flex_attention::forward", inputs=[query, key, value], outputs=results[:2], work=work)
            return results

        forward.register_fake(lambda query, key, value, *_: _forward_results(query, value))

        @torch.library.custom_op("sandtable::flex_attention_backward", mutates_args=(), schema=_BACKWARD_SCHEMA)
        def backward(
            query: Tensor,
            key: Tensor,
            value: Tensor,
            out: Tensor,
            grad_out: Tensor,
            others: list[Tensor],
            mask: str,
            density: float,
        ) -> tuple[Tensor, Tensor, Tensor]:
            results = _backward_results(query, key, value)
            known = density_of_values(mask, query, key, others)
            work = _work(query, key, value, known, density, num_products=_BACKWARD_PRODUCTS)
            inputs = [query, key, value, out, grad_out]
            record_kernel("flex_attention::backward", inputs=inputs, outputs=results, work=work)
            return results

        backward.register_fake(lambda query, key, value, *_: _backward_results(query, key, value))
    return torch.ops.sandtable.flex_attention.default, torch.ops.sandtable.flex_attention_backward.default


def _forward_results(query: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    import torch

    out = _new(query, (*query.shape[:-1], value.shape[-1]))
    sums, maxima = (torch.empty(query.shape[:-1], dtype=torch.float32, device=query.device) for _ in range(2))
    return out, sums, maxima


def _backward_results(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _new(query, query.shape), _new(key, key.shape), _new(value, value.shape)


def _new(like: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return a dense tensor with its dimensions in the order in memory that another one has."""
    import torch

    strides, step = [1] * len(sizes), 1
    for dim in sorted(range(len(sizes)), key=like.stride):
        strides[dim] = step
        step *= sizes[dim]
    return torch.empty_strided(tuple(sizes), strides, dtype=like.dtype, device=like.device)


def _work(
    query: Tensor, key: Tensor, value: Tensor, known: float | None, presumed: float, *, num_products: int
) -> Work:
    batch, heads, num_queries, head_dim = query.shape
    pairs = (presumed if known is None else known) * batch * heads * num_queries * key.shape[-2]
    mean_dim = (head_dim + value.shape[-1]) / 2
    flops = int(2 * num_products * pairs * mean_dim)
    return Work(family="attention", flops=flops, num_kernels=num_products // 2, depends_on_values=known is not None)
