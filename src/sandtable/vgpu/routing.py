"""Routing: which experts the routers of a mixture choose, since their scores are unknown (`--routing`).

`balanced` gives every expert as many tokens, `zipf:1.2` expert e of every layer a share in proportion to
(e + 1) ** -1.2, and a file the shares it lists: a JSON list with a weight per expert, or one such list per layer, or
CSV with a row per layer. The choice itself is made in `csrc/routing.cpp`.
"""

import csv
import json
import math
import os
from dataclasses import dataclass
from typing import Any

from sandtable.errors import LaunchError

__all__ = ["BALANCED", "Routing"]

BALANCED = "balanced"
_ZIPF = "zipf"
_WAYS = "balanced, zipf:1.2, or a JSON or CSV file with a weight per expert"


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How popular each expert is. `weights` holds a list per layer, or one for all layers; none: by `zipf`."""

    name: str = BALANCED
    zipf: float = 0.0
    weights: tuple[tuple[float, ...], ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Routing":
        """Read what follows `--routing`. Raises LaunchError."""
        kind, _, exponent = text.partition(":")
        if text == BALANCED:
            return cls()
        if kind == _ZIPF:
            return cls(name=text, zipf=_exponent(exponent))
        if not os.path.isfile(text):
            raise LaunchError(f"routing must be {_WAYS}, but got '{text}', which is no file either; try zipf:1.2")
        return cls(name=text, weights=_read_weights(text))

    @property
    def differs_by_layer(self) -> bool:
        return len(self.weights) > 1


def _exponent(text: str) -> float:
    try:
        exponent = float(text)
    except ValueError:
        exponent = math.nan
    if not 0 <= exponent < math.inf:
        raise LaunchError(f"the exponent of zipf routing must be a number from 0 on, but got '{text}'; try zipf:1.2")
    return exponent


def _read_weights(path: str) -> tuple[tuple[float, ...], ...]:
    with open(path, encoding="utf-8", newline="") as file:
        try:
            listed: Any = list(csv.reader(file)) if path.endswith(".csv") else json.load(file)
            rows = listed if listed and isinstance(listed[0], list) else [listed]
            weights = tuple(tuple(float(weight) for weight in row) for row in rows if row)
        except (ValueError, TypeError, KeyError) as error:
            raise LaunchError(
                f"a routing file must hold a weight per expert, or a list of them per layer, but {path} does not: "
                f"{error}; write [3, 1, 1, 1], or [[3, 1], [1, 3]], or as CSV a row per layer"
            ) from error
    for layer, row in enumerate(weights):
        if not all(0 <= weight < math.inf for weight in row) or not sum(row) > 0:
            raise LaunchError(
                f"weights of experts must be numbers from 0 on, and not all 0, but layer {layer} in {path} has "
                f"{list(row)}; give each expert its share of the tokens"
            )
    if not weights:
        raise LaunchError(f"a routing file must hold at least one list of weights, but {path} is empty")
    return weights
