"""Fused kernels: what Inductor would have Triton compile, as launches that are recorded.

Inductor knows of every kernel which buffers it touches, and how much of them. That is written into the kernel's source
as a comment, so that it travels with it through Inductor's own caches, and read from there when the kernel is loaded:

    # sandtable: {"family": "normalisation", "pointers": [{"name": "in_ptr0", "bytes_read": 8192, ...}, ...], ...}
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from sandtable.trace.work import Work, WorkFamily
from sandtable.vgpu.packages.kernels import record_kernel

__all__ = ["FusedKernel", "KernelDescription", "PointerTraffic", "describe_kernel", "name_in_script"]

_MARK = "# sandtable: "
_NUMBER_AT_END = re.compile(r"_\d+$")
_LOAD = re.compile(r"tl\.load\((\w+) \+ \((.*?)\)[,)]")
_LOOP = re.compile(r"^ +for r\d_offset in ", re.MULTILINE)

_LONG_ROW_BYTES = 128 * 1024
"""A longer row is no longer in the L2 cache when a kernel that needs its sum first reads it again: every
multiprocessor works on one row at least, and their rows together exceed the 40 or 50 MB of the cache."""


@dataclass(frozen=True, slots=True)
class PointerTraffic:
    """The bytes that a kernel moves through one of its arguments."""

    name: str
    bytes_read: int
    bytes_written: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelDescription:
    """What a fused kernel does for `num_points` points of its iteration space, pointer by pointer."""

    family: WorkFamily
    pointers: tuple[PointerTraffic, ...]
    num_points: int

    @classmethod
    def read(cls, source: str) -> KernelDescription | None:
        """Read the description that `write` has added to the source of a kernel."""
        _, mark, text = source.rpartition(_MARK)
        if not mark:
            return None
        data = json.loads(text.partition("\n")[0])
        pointers = tuple(PointerTraffic(**pointer) for pointer in data["pointers"])
        return cls(family=data["family"], pointers=pointers, num_points=data["num_points"])

    def write(self) -> str:
        """Return the description as a comment."""
        return f"{_MARK}{json.dumps(asdict(self))}\n"


class FusedKernel:
    """Stands where Inductor expects a compiled kernel: `run` is called with its arguments."""

    def __init__(self, name: str, source: str) -> None:
        self._name = f"inductor::{name_in_script(name)}"
        self._description = KernelDescription.read(source)
        self._names = _argument_names(name, source)
        self._works: dict[int, Work] = {}

    def run(self, *arguments: Any, stream: Any = None, **_: Any) -> None:
        """Record one launch."""
        inputs, outputs, num_points = [], [], 1
        for name, argument in zip(self._names, arguments, strict=False):
            if name.endswith("numel"):
                num_points *= argument
            elif "ptr" in name and hasattr(argument, "data_ptr"):  # numbers on the host are passed as they are
                if not name.startswith("out"):
                    inputs.append(argument)
                if "out" in name:
                    outputs.append(argument)
        record_kernel(self._name, inputs=inputs, outputs=outputs, work=self._work(num_points))

    def _work(self, num_points: int) -> Work:
        """Return the work for `num_points`, which may differ from those that the kernel was written for."""
        if num_points not in self._works:
            self._works[num_points] = self._scaled(num_points)
        return self._works[num_points]

    def _scaled(self, num_points: int) -> Work:
        description = self._description
        if description is None:  # several kernels in one: they touch all of their tensors
            return Work()
        scale = num_points / max(1, description.num_points)
        return Work(
            family=description.family,
            bytes_read=round(scale * sum(pointer.bytes_read for pointer in description.pointers)),
            bytes_written=round(scale * sum(pointer.bytes_written for pointer in description.pointers)),
        )


def name_in_script(name: str) -> str:
    """Return the name of a kernel without the number that Inductor adds to it."""
    return _NUMBER_AT_END.sub("", name)


def _argument_names(name: str, source: str) -> tuple[str, ...]:
    """Return the names of a kernel's arguments: pointers that it reads (in_ptr0), writes or both, and numbers."""
    _, _, definition = source.partition(f"def {name}(")
    parameters = definition.partition("):")[0].split(",")
    arguments = (text.partition(":")[0].strip() for text in parameters if "constexpr" not in text)
    return tuple(argument for argument in arguments if argument)


def describe_kernel(kernel: Any, source: str) -> KernelDescription:
    """Describe a kernel of Inductor (`TritonKernel`) whose source has just been written."""
    from torch._inductor.virtualized import V

    hint = V.graph.sizevars.optimization_hint
    num_points = prod(int(hint(size)) for size in kernel.numels.values())
    reads = _times_read(source)
    accesses = _accesses(kernel)
    definitions, buffers, *_ = kernel.args.python_argdefs()
    pointers = []
    for definition, buffer in zip(definitions, buffers, strict=False):
        if buffer not in accesses:
            continue
        size_bytes = _touched_elements(accesses[buffer], buffer, num_points) * V.graph.get_dtype(buffer).itemsize
        is_read = f"tl.load({definition.name} " in source  # of a buffer written in place, perhaps not
        is_written = definition.name.startswith(("out_ptr", "in_out_ptr"))
        row_bytes = size_bytes // max(1, _num_rows(kernel, hint))
        times = reads.get(definition.name, 1) if row_bytes > _LONG_ROW_BYTES else 1
        pointers.append(PointerTraffic(definition.name, is_read * times * size_bytes, is_written * size_bytes))
    return KernelDescription(family=_family(kernel), pointers=tuple(pointers), num_points=num_points)


def _accesses(kernel: Any) -> dict[str, list[Any]]:
    """Return the accesses of a kernel by buffer; the scheduler renames one that is written again."""
    from torch._inductor.virtualized import V

    accesses: dict[str, list[Any]] = {}
    for name, found in kernel.features.buf_accesses().items():
        accesses.setdefault(V.graph.scheduler.mutation_real_name.get(name, name), []).extend(found)
    return accesses


def _touched_elements(accesses: Any, buffer: str, num_points: int) -> int:
    """Return how many elements of a buffer are touched: at most all, and one per point for each place of the source."""
    from torch._inductor.dependencies import MemoryDep
    from torch._inductor.virtualized import V

    num_elements = int(V.graph.sizevars.optimization_hint(V.graph.get_numel(buffer)))
    places = {str(access.index) if isinstance(access, MemoryDep) else access.name for access in accesses}
    return min(num_elements, len(places) * num_points)


def _num_rows(kernel: Any, hint: Any) -> int:
    return prod(int(hint(size)) for name, size in kernel.numels.items() if not name.startswith("r"))


def _family(kernel: Any) -> WorkFamily:
    if kernel.atomic_add_found:
        return "indexing"
    return "normalisation" if kernel.inside_reduction else "elementwise"


def _times_read(source: str) -> dict[str, int]:
    """Return in how many loops over a row the elements of each pointer are loaded."""
    loops = [set(_row_loads(part)) for part in _LOOP.split(source)[1:]]
    names = set().union(*loops) if loops else set()
    return {name: sum(name in loop for loop in loops) for name in names}


def _row_loads(text: str) -> list[str]:
    return [name for name, index in _LOAD.findall(text) if "r0_" in index or "r1_" in index]
