"""Products: how many operations the matrix products of a launch have, found by running a few of its programs.

Programs of a launch may differ: with a causal mask, later rows meet more keys; of a symmetric product only tiles on one
side of the diagonal are computed. So programs at the middles of equal parts of the grid run (`simulated.py`), all of
them if they are short, and the launch has the mean of their operations for each of its programs. That is exact if all
run, or if the operations grow evenly along the grid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

from sandtable.trace.work import Work
from sandtable.vgpu.packages.triton.simulated import Counter, Unknown, run_program

__all__ = ["work_of_products"]

_SAMPLES = (8, 2, 2)
"""Programs along each axis of the grid that run, however long they are."""

_MAX_CALLS = 20_000
"""Calls of the language for which more programs run; they take some 20 ms."""

_counted: dict[Any, dict[str, int] | None] = {}


def work_of_products(function: Callable[..., Any], arguments: Mapping[str, Any], grid: Sequence[int]) -> Work | None:
    """Return the work of a launch with products; None if they depend on values, or cannot be followed."""
    key = (function, _key(arguments.values()), tuple(grid))
    if key not in _counted:
        try:
            _counted[key] = _count(function, dict(arguments), grid)
        except Unknown:
            _counted[key] = None
    flops = _counted[key]
    if not flops:
        return None
    return Work(
        family="gemm", flops=sum(flops.values()), dtype=max(flops, key=lambda name: flops[name]), grid=tuple(grid)
    )


def _count(function: Callable[..., Any], arguments: dict[str, Any], grid: Sequence[int]) -> dict[str, int]:
    first = Counter()
    run_program(function, arguments, tuple(size // 2 for size in grid), grid, first)
    counter = Counter()
    places = list(product(*map(_middles, grid, _numbers(grid, _MAX_CALLS // (first.num_calls + 1)))))
    for place in places:
        counter.num_calls = 0
        run_program(function, arguments, place, grid, counter)
    return {dtype: round(flops * prod(grid) / len(places)) for dtype, flops in counter.flops.items()}


def _numbers(grid: Sequence[int], most: int) -> list[int]:
    """Return how many programs run along each axis: `_SAMPLES`, and more on the first axes while that is affordable."""
    least = [min(size, samples) for size, samples in zip(grid, _SAMPLES, strict=False)]
    numbers = []
    for place, size in enumerate(grid):
        number = max(min(size, most // prod(least[place + 1 :])), least[place])
        numbers.append(number)
        most //= number
    return numbers


def _middles(size: int, most: int) -> list[int]:
    """Return the middles of `most` equal parts of `size`, as far from its start as from its end; all of a few."""
    if size <= 2 * most:
        return list(range(size))
    first_half = [int((place + 0.5) * size / most) for place in range(most // 2)]
    return [*first_half, *(size - 1 - place for place in reversed(first_half))]


def _key(values: Any) -> tuple[Any, ...]:
    """Return what distinguishes the arguments of launches: types of tensors, and everything else."""
    return tuple(_keys(values))


def _keys(values: Any) -> Iterator[Any]:
    import torch

    for value in values:
        if isinstance(value, torch.Tensor):
            yield value.dtype
        elif isinstance(value, (tuple, list)):
            yield _key(value)
        elif isinstance(getattr(value, "base", None), torch.Tensor):
            yield value.base.dtype, tuple(getattr(value, "block_shape", ()))
        else:
            yield value if value.__hash__ is not None else repr(value)
