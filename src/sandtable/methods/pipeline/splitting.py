"""Batch slices: split a batch by rows, the first dimension of every tensor."""

from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from sandtable.errors import MethodError

__all__ = ["BatchSlice", "num_rows", "split", "to_device"]

Values = TypeVar("Values")


@dataclass(frozen=True, slots=True)
class BatchSlice:
    """Some rows of a batch, a `share` of it: means of slices, weighted by it, add up to that of the batch."""

    inputs: Any
    targets: Any
    share: float


def split(inputs: Any, targets: Any, *, parts: int) -> list[BatchSlice]:
    """Split into parts as equal as possible, none of them empty. What is None (not needed here) stays None."""
    if parts == 1:
        return [BatchSlice(inputs, targets, 1.0)]
    rows = num_rows(targets if targets is not None else inputs)
    if rows is not None and rows < parts:
        raise MethodError(
            f"a batch must have at least one row for each of its {parts} parts, but has {rows}; "
            "leave such a batch out (drop_last=True), or use fewer micro-batches or replicas"
        )
    if rows is None:
        shares = [1 / parts] * parts
    else:
        shares = [len(part) / rows for part in torch.arange(rows).tensor_split(parts)]
    return [
        BatchSlice(_part(inputs, parts, index), _part(targets, parts, index), share)
        for index, share in enumerate(shares)
    ]


def num_rows(values: Any) -> int | None:
    """Return the rows of the first tensor; None if there is no tensor."""
    if isinstance(values, Tensor):
        return len(values) if values.dim() else None
    if isinstance(values, dict):
        values = list(values.values())
    if isinstance(values, list | tuple):
        return next((rows for rows in map(num_rows, values) if rows is not None), None)
    return None


def to_device(values: Values, device: torch.device) -> Values:
    """Return the nested value with all its tensors on the device."""
    return _mapped(values, lambda tensor: tensor.to(device, non_blocking=True))  # type: ignore[no-any-return]


def _part(values: Any, parts: int, index: int) -> Any:
    return _mapped(values, lambda tensor: tensor.tensor_split(parts)[index] if tensor.dim() else tensor)


def _mapped(values: Any, function: Any) -> Any:
    if isinstance(values, Tensor):
        return function(values)
    if isinstance(values, dict):
        return {key: _mapped(value, function) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return type(values)(_mapped(value, function) for value in values)
    return values
