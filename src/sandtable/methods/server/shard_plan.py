"""The shard plan: which server holds which weights of the model.

All trainable parameters of one dtype are laid end to end, in the model's order, like boards on one long table, and the
table is cut into equal parts, one per server. A cut close to the border of two parameters is moved there, so small
parameters stay whole and each cut splits at most one parameter. Workers and servers make the same plan from the same
model, so only its digest has to be compared.
"""

import hashlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from sandtable.errors import MethodError

__all__ = ["ParameterSlice", "ShardPart", "ShardPlan", "trainable"]

_SNAP = 1 / 64
"""A cut is moved to a border of parameters that is nearer than this share of a part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSlice:
    """Elements `start` to `stop` of a parameter. `shape` is the parameter's if it is whole, else one-dimensional."""

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]
    is_whole: bool

    @property
    def num_elements(self) -> int:
        return self.stop - self.start

    @property
    def label(self) -> str:
        """Its name for an optimizer: "fc.weight", or "fc.weight[0:500]" for a part."""
        return self.name if self.is_whole else f"{self.name}[{self.start}:{self.stop}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPart:
    """What one server holds of one dtype: elements `start` to `stop` of that dtype's table, as slices in order."""

    dtype: torch.dtype
    start: int
    stop: int
    slices: tuple[ParameterSlice, ...]

    @property
    def num_elements(self) -> int:
        return self.stop - self.start

    @property
    def num_bytes(self) -> int:
        return self.num_elements * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlan:
    """The parts of each shard, and a digest that is equal for equal plans."""

    shards: tuple[tuple[ShardPart, ...], ...]
    digest: str

    @classmethod
    def make(cls, model: nn.Module, *, num_shards: int, cut: bool = True) -> "ShardPlan":
        """Cut `model` into `num_shards`. Without `cut` parameters stay whole, for optimizers that need their shape."""
        tables = trainable(model)
        num_elements = sum(parameter.numel() for table in tables.values() for _, parameter in table)
        if num_elements < num_shards:
            raise MethodError(
                f"shards ({num_shards}) must not exceed the model's trainable elements ({num_elements}); use fewer"
            )
        parts: list[list[ShardPart]] = [[] for _ in range(num_shards)]
        for dtype, table in tables.items():
            cuts = _cuts([parameter.numel() for _, parameter in table], num_shards, cut=cut)
            for shard, (start, stop) in enumerate(itertools.pairwise(cuts)):
                parts[shard].append(
                    ShardPart(dtype=dtype, start=start, stop=stop, slices=tuple(_slices(table, start, stop)))
                )
        for shard, held in enumerate(parts):
            if not any(part.num_elements for part in held):
                raise MethodError(
                    f"every shard must hold a parameter, but shard {shard} of {num_shards} would be empty with whole "
                    "parameters; use fewer shards or allow cutting (cut=True)"
                )
        return cls(shards=tuple(tuple(held) for held in parts), digest=_digest(tables, parts))


def trainable(model: nn.Module) -> dict[torch.dtype, list[tuple[str, nn.Parameter]]]:
    """Return trainable parameters by dtype, wide dtypes first, so that each begins aligned in a message."""
    tables: dict[torch.dtype, list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            tables.setdefault(parameter.dtype, []).append((name, parameter))
    return {dtype: tables[dtype] for dtype in sorted(tables, key=lambda dtype: (-dtype.itemsize, str(dtype)))}


def _cuts(sizes: Sequence[int], num_shards: int, *, cut: bool) -> list[int]:
    """Return the cuts of the table: 0, num_shards - 1 ascending positions, and its length."""
    borders = list(itertools.accumulate(sizes, initial=0))
    total = borders[-1]
    reach = total / num_shards * _SNAP if cut else float("inf")
    cuts = [0]
    for shard in range(1, num_shards):
        ideal = total * shard // num_shards
        border = min(borders, key=lambda border: abs(border - ideal))
        position = border if abs(border - ideal) <= reach else ideal
        cuts.append(max(position, cuts[-1]))
    return [*cuts, total]


def _slices(table: Sequence[tuple[str, nn.Parameter]], start: int, stop: int) -> list[ParameterSlice]:
    slices, offset = [], 0
    for name, parameter in table:
        first, last = max(start - offset, 0), min(stop - offset, parameter.numel())
        if first < last:
            whole = last - first == parameter.numel()
            shape = tuple(parameter.shape) if whole else (last - first,)
            slices.append(ParameterSlice(name=name, start=first, stop=last, shape=shape, is_whole=whole))
        offset += parameter.numel()
    return slices


def _digest(tables: dict[torch.dtype, list[tuple[str, nn.Parameter]]], parts: Sequence[Sequence[ShardPart]]) -> str:
    """Return sixteen hexadecimal digits that depend on every name, shape, dtype and cut."""
    parameters = [[str(dtype), name, list(p.shape)] for dtype, table in tables.items() for name, p in table]
    cuts = [[part.start, part.stop] for held in parts for part in held]
    text = json.dumps([parameters, cuts], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
