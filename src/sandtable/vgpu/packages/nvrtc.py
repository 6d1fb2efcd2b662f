"""NVRTC: kernels in CUDA C++ that torch compiles when a script hands it their source (`torch.cuda._compile_kernel`).

Nothing is compiled; a launch is recorded with its grid and its tensors. Which of them it writes follows from the
signature: a pointer to `const` is read, any other is read and written.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from sandtable.trace.work import Work
from sandtable.vgpu.packages.kernels import record_kernel, work_of
from sandtable.vgpu.packages.package import Package
from sandtable.vgpu.packages.watcher import Watcher

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["package", "parameters_of"]

_COMMENTS = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)


def package(watcher: Watcher) -> Package:
    """Return what is changed in which module."""
    return Package(
        name="nvrtc",
        adaptations={"torch.cuda._utils": _record_launches, "torch.cuda.jiterator": _record_functions},
    )


def parameters_of(source: str, kernel: str) -> list[str]:
    """Return the parameters of a kernel as its source declares them; empty if it is not found."""
    found = re.search(rf"\b{re.escape(kernel)}\s*\(([^)]*)\)", _COMMENTS.sub("", source))
    return [" ".join(part.split()) for part in found.group(1).split(",")] if found and found.group(1).strip() else []


class _SourceKernel:
    """A kernel that would have been compiled; it is called as torch's own class is."""

    def __init__(self, name: str, parameters: Sequence[str]) -> None:
        self._name = name
        self._parameters = parameters

    def __call__(
        self,
        grid: tuple[int, int, int] = (1, 1, 1),
        block: tuple[int, int, int] = (1, 1, 1),
        args: Sequence[Any] | None = None,
        shared_mem: int = 0,
        stream: Any | None = None,
    ) -> None:
        import torch

        given = list(args or ())
        for argument in given:
            if isinstance(argument, torch.Tensor) and not (argument.is_cuda or argument.is_pinned()):
                raise ValueError("All tensor arguments must be CUDA tensors or pinned CPU tensors")
        inputs = [argument for argument in given if isinstance(argument, torch.Tensor)]
        work = work_of(self._name, dict(zip(self._names(len(given)), given, strict=True))) or Work()
        with nullcontext() if stream is None else torch.cuda.stream(stream):
            record_kernel(
                f"nvrtc::{self._name}",
                inputs=inputs,
                outputs=self._written(given),
                work=replace(work, grid=tuple(map(int, grid))),
            )

    def set_shared_memory_config(self, shared_mem_bytes: int) -> None:
        """Accept any size."""

    def _written(self, given: Sequence[Any]) -> list[Tensor]:
        import torch

        is_read_only = ["const" in parameter.split("*")[0].split() for parameter in self._parameters]
        is_read_only += [False] * (len(given) - len(is_read_only))
        return [
            argument
            for argument, is_const in zip(given, is_read_only, strict=False)
            if isinstance(argument, torch.Tensor) and not is_const
        ]

    def _names(self, count: int) -> list[str]:
        names = [re.split(r"[\s*&]+", parameter)[-1] for parameter in self._parameters]
        return [names[place] if place < len(names) else f"argument_{place}" for place in range(count)]


class _SourceModule:
    """What loading compiled code without names of kernels gives: its kernels as attributes."""

    def __init__(self, find: Callable[[str], _SourceKernel]) -> None:
        self._find = find

    def __getattr__(self, name: str) -> _SourceKernel:
        return self._find(name)


def _record_launches(module: ModuleType) -> None:
    """Have compiling keep the source, and loading make kernels that record their launches."""

    def compile_source(source: str, name: str, *_: Any, **__: Any) -> tuple[bytes, str]:
        return json.dumps(source).encode(), name

    def load(code: str | bytes, names: Sequence[str] | None = None) -> Any:
        def find(name: str) -> _SourceKernel:
            return _SourceKernel(name, parameters_of(_source(code), name))

        return _SourceModule(find) if not names else {name: find(name) for name in names}

    module._nvrtc_compile = compile_source  # type: ignore[attr-defined]
    module._cuda_load_module = load  # type: ignore[attr-defined]


def _record_functions(module: ModuleType) -> None:
    """Have functions that `torch.cuda.jiterator` would compile record their launches: one result per element."""
    import torch

    def launch(
        code: str, name: str, return_by_ref: bool, num_outputs: int, tensors: Sequence[Tensor], options: dict[str, Any]
    ) -> Any:
        shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))  # type: ignore[no-untyped-call]
        dtype = functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
        outputs = [torch.empty(shape, dtype=dtype, device=tensors[0].device) for _ in range(num_outputs)]
        record_kernel(f"jiterator::{name}", inputs=tensors, outputs=outputs, work=work_of(name, options) or Work())
        return outputs[0] if num_outputs == 1 else tuple(outputs)

    torch._C._cuda_jiterator_compile_and_launch_kernel = launch  # type: ignore[assignment]


def _source(code: str | bytes) -> str:
    """Return the source that `compile_source` kept; compiled code from elsewhere has none."""
    try:
        source = json.loads(code)
    except ValueError:
        return ""
    return source if isinstance(source, str) else ""
