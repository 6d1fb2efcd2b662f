"""One published time of a kernel, and the signatures of what ran."""

import csv
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sandtable.engine.compute import Conditions
from sandtable.trace.signature import Signature, TensorSpec

__all__ = ["BURST", "CACHED", "Case", "read", "tensor"]

FOLDER = Path(__file__).parents[2] / "validation" / "kernels"
BURST = Conditions(burst=True)
CACHED = Conditions(burst=True, cached=True)

_FITTED_OF = 3


@dataclass(frozen=True, kw_only=True)
class Case:
    """A published time: `set_name` groups rows that are scored together, `shape` is the same in every table.

    `harness_us` is time that the measurement adds to that of the kernels, `num_sms` how many multiprocessors
    were free if not all. `may_fit`: whether a third of the shapes of
    this table, chosen by their hash, was used to fit the shares; the other rows are blind.
    """

    set_name: str
    table: str
    device: str
    shape: str
    published_us: float
    operators: tuple[Signature, ...]
    conditions: Conditions = BURST
    harness_us: float = 0.0
    num_sms: int | None = None
    may_fit: bool = False

    @cached_property
    def is_fitted(self) -> bool:
        digest = hashlib.sha1(f"split {self.shape}".encode()).hexdigest()
        return self.may_fit and int(digest, 16) % _FITTED_OF == 0


def read(name: str) -> Iterator[dict[str, str]]:
    """Yield the rows of validation/kernels/<name>.csv."""
    with (FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def tensor(dtype: str, *shape: int) -> TensorSpec:
    """Return a contiguous tensor."""
    strides, distance = [], 1
    for size in reversed(shape):
        strides.append(distance)
        distance *= size
    return TensorSpec(dtype, shape, tuple(reversed(strides)))
