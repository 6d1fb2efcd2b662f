"""A guide: what a run takes from another one in place of its own, so that both compute the same.

The run still executes its script. But where the script copies a batch to the card, it gets the other run's; random
numbers come from the other run's seeds; and at every update the parameters, or the gradients, are the other run's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

import numpy.typing as npt

from sandtable.trace.real_values import read_arrays, write_arrays

__all__ = ["Guide", "GuidedDraw"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class GuidedDraw:
    """The seeds of random numbers of these sizes: one for each of the equal parts into which `dim` is cut."""

    sizes: tuple[int, ...]
    dim: int
    seeds: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Guide:
    """What to take. Copies and draws are known by line of the script and number of the update, in order."""

    copies: Mapping[tuple[str, int, int], tuple[Array, ...]] = field(default_factory=dict)
    draws: Mapping[tuple[str, str, int, int], tuple[GuidedDraw, ...]] = field(default_factory=dict)
    """By name of the operator, file, line and update."""
    values: Mapping[tuple[int, str], Array] = field(default_factory=dict)
    """Of parameters before an update; of the number behind the last, at the end."""
    gradients: Mapping[tuple[int, str], Array] = field(default_factory=dict)
    """Which the last backward pass before an update is to leave."""
    backwards: Mapping[tuple[int, str], int] = field(default_factory=dict)
    """How many passes have ended then."""

    def save(self, path: str | PathLike[str]) -> None:
        """Write one file."""
        copies, draws = list(self.copies), list(self.draws)
        arrays: dict[str, Array] = {}
        for number, key in enumerate(copies):
            for position, array in enumerate(self.copies[key]):
                arrays[f"copies/{number}/{position}"] = array
        for kind in ("values", "gradients"):
            for (update, name), array in getattr(self, kind).items():
                arrays[f"{kind}/{update}/{name}"] = array
        document = {
            "copies": [(key, len(self.copies[key])) for key in copies],
            "draws": [(key, [(draw.sizes, draw.dim, draw.seeds) for draw in self.draws[key]]) for key in draws],
            "backwards": [(update, name, count) for (update, name), count in self.backwards.items()],
        }
        write_arrays(path, document, arrays)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Guide:
        """Read what `save` wrote."""
        document, arrays = read_arrays(path)
        kinds: dict[str, dict[tuple[int, str], Array]] = {"values": {}, "gradients": {}}
        for key, array in arrays.items():
            kind, _, rest = key.partition("/")
            if kind in kinds:
                update, _, name = rest.partition("/")
                kinds[kind][int(update), name] = array
        return cls(
            copies={
                tuple(key): tuple(arrays[f"copies/{number}/{position}"] for position in range(length))
                for number, (key, length) in enumerate(document["copies"])
            },
            draws={
                tuple(key): tuple(
                    GuidedDraw(sizes=tuple(sizes), dim=dim, seeds=tuple(seeds)) for sizes, dim, seeds in rows
                )
                for key, rows in document["draws"]
            },
            backwards={(update, name): count for update, name, count in document["backwards"]},
            **kinds,
        )
