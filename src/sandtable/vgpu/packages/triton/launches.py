"""Launches: what `kernel[grid](...)` does in a rehearsal. Nothing is compiled; the launch is recorded.

Its tensors are its arguments. Which of them it reads and writes is found in its source (`accesses.py`). Its work comes
from a description, if there is one by its name, or else from these bytes, each tensor once, and from its matrix
products (`products.py`). Where those cannot be counted, a note says so.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from sandtable.trace.work import Work
from sandtable.vgpu.packages.kernels import record_kernel, work_of
from sandtable.vgpu.packages.triton.accesses import Accesses, find_accesses
from sandtable.vgpu.packages.triton.products import work_of_products
from sandtable.vgpu.preload import loaded_core

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LaunchedKernel", "is_constant", "known_accesses", "record_launch", "run"]

_OPTIONS = SimpleNamespace(num_warps=4, num_stages=3, num_ctas=1)
"""Triton's own defaults."""


class LaunchedKernel:
    """What a launch or `warmup` returns: the compiled kernel, of which there is only the name. It can be launched."""

    n_regs = n_max_threads = 32
    n_spills = 0

    def __init__(self, kernel: Any, arguments: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        self._kernel = kernel
        self._constants = {name: value for name, value in arguments.items() if is_constant(kernel.fn, name)}
        self._options = dict(options)
        self.name = kernel.fn.__name__
        self.metadata = SimpleNamespace(**{**vars(_OPTIONS), "shared": 1024, "name": self.name, **options})
        self.asm: dict[str, str] = {}
        self.hash = self.name

    def _init_handles(self) -> None:
        """Accept what loads a compiled kernel."""

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        def launch(*args: Any, **_: Any) -> Any:
            names = list(inspect.signature(self._kernel.fn).parameters)
            given = args if len(args) == len(names) else _with_constants(names, args, self._constants)
            return run(self._kernel, *given, grid=grid, warmup=False, **self._options)

        return launch


def run(kernel: Any, *args: Any, grid: Any, warmup: bool = False, **keywords: Any) -> LaunchedKernel:
    """Record a launch of a `JITFunction`, with the arguments of its method `run`."""
    for hook in getattr(kernel, "pre_run_hooks", ()):
        hook(*args, **keywords)
    parameters = inspect.signature(kernel.fn).parameters
    named = {name: value for name, value in keywords.items() if name in parameters}
    options = {name: value for name, value in keywords.items() if name not in parameters}
    bound = inspect.signature(kernel.fn).bind(*args, **named)
    bound.apply_defaults()
    if not warmup:
        sizes = grid(bound.arguments) if callable(grid) else grid
        blocks = tuple(int(size) for size in (sizes if isinstance(sizes, Sequence) else (sizes,)))
        if all(blocks):
            record_launch(kernel.fn, bound.arguments, Work(grid=blocks))
    return LaunchedKernel(kernel, bound.arguments, options)


def record_launch(function: Callable[..., Any], arguments: Mapping[str, Any], default: Work) -> None:
    """Record one launch of a kernel's function; a described one does the described work, on the grid of `default`."""
    name = f"{function.__module__}.{function.__qualname__}"
    accesses = known_accesses(function)
    tensors = {parameter: list(_tensors(value)) for parameter, value in arguments.items()}
    _refuse_host_tensors(name, tensors)
    if accesses is None:
        inputs, outputs = [], _distinct(tensors, tensors)
    else:
        inputs, outputs = _distinct(tensors, accesses.read), _distinct(tensors, accesses.written)
    work = work_of(name, arguments)
    if work is None:
        has_products = accesses is not None and accesses.has_products
        counted = work_of_products(function, arguments, default.grid) if has_products else None
        work = counted or default
        if has_products and counted is None:
            loaded_core().note(
                "undescribed product",
                f"the Triton kernel {name} computes matrix products whose number depends on values, so that only its "
                f'bytes are counted; describe it with @sandtable.cost("{name}")',
            )
    record_kernel(
        f"triton::{function.__name__}",
        inputs=inputs,
        outputs=outputs,
        work=replace(work, grid=default.grid),
    )


@functools.cache
def known_accesses(function: Callable[..., Any]) -> Accesses | None:
    """Return what a kernel's function reads and writes, found once."""
    return find_accesses(function)


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors that an argument points into: itself, a descriptor's, or those of a tuple."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(base := getattr(value, "base", None), torch.Tensor):  # TensorDescriptor, TensorWrapper
        yield base


def _refuse_host_tensors(name: str, tensors: Mapping[str, Iterable[Tensor]]) -> None:
    for parameter, given in tensors.items():
        for tensor in given:
            if tensor.device.type == "cpu" and not tensor.is_pinned():
                raise ValueError(
                    f"argument {parameter} of the Triton kernel {name} must be on the card, but its device is cpu; "
                    "move it there, or pin its memory"
                )


def _distinct(tensors: Mapping[str, Sequence[Tensor]], names: Iterable[str]) -> list[Tensor]:
    """Return the tensors of these parameters, each once, in the order of the parameters."""
    kept: dict[Any, Tensor] = {}
    chosen = frozenset(names)
    for name, given in tensors.items():
        for tensor in given if name in chosen else ():
            kept.setdefault((tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype), tensor)
    return list(kept.values())


def is_constant(function: Callable[..., Any], name: str) -> bool:
    """Return whether a parameter of a kernel is compiled into it."""
    annotation = inspect.signature(function).parameters[name].annotation
    return "constexpr" in (annotation if isinstance(annotation, str) else getattr(annotation, "__name__", ""))


def _with_constants(names: Sequence[str], args: Sequence[Any], constants: Mapping[str, Any]) -> list[Any]:
    """Return the arguments of a compiled kernel, which has its constants inside, as those of its function."""
    remaining = iter(args)
    return [constants[name] if name in constants else next(remaining, None) for name in names]
