"""List shardings: how DTensor cuts the results of operators on lists, computed once per kind of element.

An optimizer updates a thousand distributed tensors in one call, and DTensor considers every one of them on its own, in
Python, and for each all the others again: ten seconds on each rank for Llama 3 405B. But a hundred layers have the same
ten kinds of parameters, and the answer for an element depends only on its kind. So DTensor is asked about a list with
one element of each kind, and its answer is spread over the whole list.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

__all__ = ["adapt_list_shardings"]

_LIST_OPERATORS = ("aten::_foreach_", "aten::_amp_foreach_", "aten::_fused_")
"""Operators whose lists are worked on element by element."""


def adapt_list_shardings() -> None:
    """Have DTensor consider each kind of element of a list once, in this process."""
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    ShardingPropagator.propagate_op_sharding_non_cached = _once_per_kind(  # type: ignore[method-assign]
        ShardingPropagator.propagate_op_sharding_non_cached
    )


def _once_per_kind(propagate: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(propagate)
    def propagate_kinds(self: Any, op_schema: Any) -> Any:
        kind_of = _kinds(op_schema)
        if kind_of is None:
            return propagate(self, op_schema)
        firsts = [kind_of.index(kind) for kind in range(max(kind_of) + 1)]
        sharding = propagate(self, _with_elements(op_schema, len(kind_of), firsts))
        if isinstance(sharding.output_spec, (list, tuple)):
            sharding.output_spec = type(sharding.output_spec)([sharding.output_spec[kind] for kind in kind_of])
        if sharding.redistribute_schema is not None:
            sharding.redistribute_schema = _with_elements(sharding.redistribute_schema, len(firsts), kind_of)
        return sharding

    return propagate_kinds


def _kinds(op_schema: Any) -> list[int] | None:
    """Return the kind of each element of an operator's lists; None if all differ, or if lists are not of one length."""
    if not op_schema.op.name().startswith(_LIST_OPERATORS):
        return None
    lists = [arg for arg in op_schema.args_schema if _is_list(arg) and arg]
    if len({len(elements) for elements in lists}) != 1 or any(map(_is_list, op_schema.kwargs_schema.values())):
        return None
    numbers: dict[Hashable, int] = {}
    try:
        kind_of = [numbers.setdefault(element, len(numbers)) for element in zip(*lists, strict=True)]
    except TypeError:  # an element that cannot be compared
        return None
    return kind_of if len(numbers) < len(kind_of) else None


def _with_elements(op_schema: Any, length: int, chosen: Sequence[int]) -> Any:
    """Return the schema with these elements of each of its lists, which have this length."""
    args = [
        type(arg)([arg[place] for place in chosen]) if _is_list(arg) and len(arg) == length else arg
        for arg in op_schema.args_schema
    ]
    return type(op_schema)(op_schema.op, tuple(args), op_schema.kwargs_schema, op_schema.schema_info)


def _is_list(arg: Any) -> bool:
    return isinstance(arg, (list, tuple))
