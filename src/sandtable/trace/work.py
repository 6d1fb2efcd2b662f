"""Work: what one launch of a kernel does, stated where it is recorded.

The engine knows torch's own operators by name. A kernel that some package brings, that a compiler fuses or that a user
describes has a name that says nothing; its record then carries its work, so that a trace can be priced without the
package, and without torch.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal

__all__ = ["Place", "Work", "WorkFamily"]

WorkFamily = Literal["gemm", "attention", "elementwise", "normalisation", "reduction", "copy", "indexing"]
"""Whose efficiency a kernel has: a name of a family in `engine.compute`."""

Place = Literal["device", "host", "process", "disk"]
"""Where the work is done: on the card, by the rank itself in host memory, by a process beside it, or by the disks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one launch does.

    `flops` are operations of matrix products in `dtype` (that of the first input if empty); `products` lists the
    products (batch, m, n, k) instead, for a kernel whose time depends on how they fill tiles. Bytes that are not given
    are those of the recorded tensors: inputs are read and outputs written once. `rows` and `row_ns` describe a kernel
    that keeps one program per multiprocessor, each of which takes its share of the rows one after the other. `grid` are
    the blocks that the kernel is launched with, where they are known. Work of the host and its disks keeps the host
    busy, and the card waits for what it issues next; work of a process beside it takes its time on the stream that it
    is recorded on. `flops` that depend on values differ between ranks that do the same with other data, and do not tell
    them apart.
    """

    family: WorkFamily = "elementwise"
    flops: int = 0
    products: tuple[tuple[int, int, int, int], ...] = ()
    dtype: str = ""
    bytes_read: int | None = None
    bytes_written: int | None = None
    num_kernels: int = 1
    rows: int = 0
    row_ns: float = 0.0
    place: Place = "device"
    grid: tuple[int, ...] = ()
    basis: Literal["fitted", "nominal"] = "nominal"
    depends_on_values: bool = False

    def __post_init__(self) -> None:
        for name in ("flops", "bytes_read", "bytes_written", "num_kernels", "rows", "row_ns"):
            number = getattr(self, name)
            if number is not None and number < 0:
                raise ValueError(f"{name} of a kernel must not be negative, but got {number}")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Work":
        """Read the decoded `text`."""
        products = tuple((batch, m, n, k) for batch, m, n, k in data.get("products", ()))
        return cls(**{**data, "products": products, "grid": tuple(data.get("grid", ()))})

    @property
    def text(self) -> str:
        """The fields that differ from their defaults, as JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        defaults = {field.name: field.default for field in fields(self) if field.default is not MISSING}
        given = {name: value for name, value in values.items() if value != defaults[name]}
        return json.dumps(given, separators=(",", ":"))

    @property
    def total_flops(self) -> int:
        """Operations of all products."""
        return self.flops or sum(2 * batch * m * n * k for batch, m, n, k in self.products)
