"""Triton: kernels written in Python, which its compiler would turn into code for the card when they are launched.

The module `triton.runtime.jit` launches them by `JITFunction.run`, which records the launch here (`launches.py`).
Triton's own code still does what comes before it: heuristics, grids, hooks. Autotuning measures nothing, so that the
first configuration wins (after those have been removed that the script prunes). Where Triton is not installed, a
module of the same name has what kernels need to be defined and launched (`stand_in.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from sandtable.vgpu.packages.package import Package
from sandtable.vgpu.packages.triton import launches, stand_in
from sandtable.vgpu.packages.triton.driver import VirtualDriver, bench_once
from sandtable.vgpu.packages.watcher import Watcher

__all__ = ["package"]


def package(watcher: Watcher) -> Package:
    """Return what is changed in which module."""
    return Package(
        name="triton",
        adaptations={
            "triton.runtime.jit": _record_launches,
            "triton.runtime.autotuner": _take_first_configuration,
            "triton.runtime.driver": _answer_for_the_card,
            "triton.testing": _measure_nothing,
            "torch.utils._triton": _look_again,
            "torch._higher_order_ops.triton_kernel_wrap": _find_accesses,
        },
        missing=stand_in.modules(),
        version=stand_in.VERSION,
    )


def _record_launches(module: ModuleType) -> None:
    module.JITFunction.run = launches.run


def _take_first_configuration(module: ModuleType) -> None:
    module.Autotuner._bench = lambda *_, **__: [1.0] * 3  # the first of the quickest wins
    # Measured times are not kept in a file, because there are none.
    module.Autotuner.check_disk_cache = lambda self, key, configurations, bench: bench()


def _answer_for_the_card(module: ModuleType) -> None:
    def target(*args: Any) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget(*args)

    driver = VirtualDriver(target)
    for name in ("_default", "_active"):
        setattr(module.driver, name, driver)
    for name in ("default", "active"):  # older releases compute them when they are first asked for
        if not isinstance(getattr(type(module.driver), name, None), property):
            setattr(module.driver, name, driver)


def _measure_nothing(module: ModuleType) -> None:
    for name in ("do_bench", "do_bench_cudagraph"):
        setattr(module, name, bench_once)


def _look_again(module: ModuleType) -> None:
    """Have torch look once more whether Triton is there: it looked when only an installed one could be found."""
    for name in ("has_triton_package", "get_triton_version"):
        getattr(getattr(module, name), "cache_clear", lambda: None)()


def _find_accesses(module: ModuleType) -> None:
    """Have torch.compile learn what a kernel writes from its source too: torch has Triton's compiler translate it."""
    if hasattr(module, "identify_accessed_tensors"):
        module.identify_accessed_tensors = _accesses_in_graph  # type: ignore[attr-defined]
    else:
        find: Any = lambda kernel, arguments, *_: _access_names(kernel, arguments)[1]  # noqa: E731
        module.identify_mutated_tensors = find  # type: ignore[attr-defined]


def _accesses_in_graph(kernel: Any, arguments: Mapping[str, Any], *_: Any) -> Any:
    from torch._higher_order_ops.triton_kernel_wrap import TensorAccesses
    from torch._inductor.dependencies import ReadWrites, StarDep
    from torch.utils._ordered_set import OrderedSet

    reads, writes = (OrderedSet(StarDep(name) for name in names) for names in _access_names(kernel, arguments))
    return TensorAccesses(
        ReadWrites(reads=reads, writes=writes, index_exprs=OrderedSet()),  # type: ignore[arg-type]
        can_fuse_epilogue=False,
    )


def _access_names(kernel: Any, arguments: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the names of tensors among the arguments that a kernel reads and writes; all, if that is not known."""
    import torch
    from torch._inductor.ir import TensorBox

    tensors = [name for name, value in arguments.items() if isinstance(value, (torch.Tensor, TensorBox))]
    function = kernel
    while not inspect.isfunction(function):
        function = function.fn
    accesses = launches.known_accesses(function)
    if accesses is None:
        return tensors, tensors
    return [name for name in tensors if name in accesses.read], [name for name in tensors if name in accesses.written]
