"""Kernels: records launches of kernels that are not operators of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from sandtable.trace.work import Work
from sandtable.vgpu.preload import loaded_core

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["describe_kernel", "record_kernel", "work_of"]

_descriptions: dict[str, Callable[..., Work]] = {}
"""By a kernel's full name: a function that is called with the launch's arguments by name, and returns its work."""


def record_kernel(name: str, *, inputs: Iterable[Tensor], outputs: Iterable[Tensor], work: Work) -> None:
    """Record one launch that reads `inputs` and writes `outputs`, on the current stream; their values are unknown then.

    `name` is the package's and the kernel's: `flash_attn::varlen_forward`. Outputs are allocated by the caller.
    """
    loaded_core().record_kernel(name, list(inputs), list(outputs), work.text)


def describe_kernel(name: str, describe: Callable[..., Work]) -> None:
    """Have launches of the kernel of this full name do what `describe(**arguments)` returns."""
    _descriptions[name] = describe


def work_of(name: str, arguments: Mapping[str, Any]) -> Work | None:
    """Return the described work of a launch, by the full name of its kernel (`module.kernel`); None if there is none.

    A description by the last part of the name alone is for kernels of that name in any module.
    """
    describe = _descriptions.get(name) or _descriptions.get(name.rpartition(".")[2])
    return None if describe is None else describe(**arguments)
