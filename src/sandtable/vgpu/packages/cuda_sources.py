"""CUDA sources: extensions that a script has torch build when it runs (`torch.utils.cpp_extension.load`).

Nothing is built if some of the sources are CUDA's: no card would run the result. A module whose name is that of a
replacement (`scaled_upper_triang_masked_softmax_cuda`, which GPT-NeoX builds from a copy of apex's source) is the
replacement. Any other consists of the functions that the user describes. Operators that the sources register with torch
(`TORCH_LIBRARY`) are there, too, for the user to describe.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from sandtable.vgpu.packages.cpp_operators import declared_operators
from sandtable.vgpu.packages.importing import PackageFinder
from sandtable.vgpu.packages.package import Package
from sandtable.vgpu.packages.watcher import Watcher
from sandtable.vgpu.undescribed import undescribed_module

__all__ = ["package"]

_CUDA_SUFFIXES = (".cu", ".cuh")

_OnUnbuilt = Callable[[str, Iterable[str]], None]
_FindSources = Callable[..., list[str] | None]


def package(watcher: Watcher) -> Package:
    """Return what is changed in which module."""
    return Package(
        name="cpp_extension", adaptations={"torch.utils.cpp_extension": partial(_build_no_kernels, watcher.on_unbuilt)}
    )


def _build_no_kernels(on_unbuilt: _OnUnbuilt, module: Any) -> None:
    module.load = _unless(_cuda_files, module.load, on_unbuilt)
    module.load_inline = _unless(_inline_sources, module.load_inline, on_unbuilt)


def _unless(find: _FindSources, build: Callable[..., Any], on_unbuilt: _OnUnbuilt) -> Callable[..., Any]:
    """Return a function that builds, unless `find` finds CUDA among the sources."""

    @functools.wraps(build)
    def build_or_replace(name: str, *args: Any, **options: Any) -> Any:
        sources = find(*args, **options)
        if sources is None:
            built = build(name, *args, **options)
            if isinstance(built, ModuleType):
                _package_finder().fill_described(built)
            return built
        schemas: dict[str, list[str]] = {}
        for namespace, schema in declared_operators("\n".join(sources), extension=name):
            schemas.setdefault(namespace, []).append(schema)
        for namespace, declared in schemas.items():
            on_unbuilt(namespace, declared)
        return _replacement(name) if options.get("is_python_module", True) else None

    return build_or_replace


def _cuda_files(sources: str | list[str], *_: Any, with_cuda: bool | None = None, **__: Any) -> list[str] | None:
    """Return the text of the files, if CUDA is among them."""
    files = [Path(file) for file in ([sources] if isinstance(sources, (str, os.PathLike)) else sources)]
    if not with_cuda and not any(file.suffix in _CUDA_SUFFIXES for file in files):
        return None
    return [file.read_text(errors="replace") for file in files if file.is_file()]


def _inline_sources(
    cpp_sources: Any, cuda_sources: Any = None, *_: Any, with_cuda: bool | None = None, **__: Any
) -> list[str] | None:
    """Return the texts, if CUDA is among them."""
    if not with_cuda and not cuda_sources:
        return None
    return [
        text
        for sources in (cpp_sources, cuda_sources or [])
        for text in ([sources] if isinstance(sources, str) else sources)
    ]


def _replacement(name: str) -> ModuleType:
    _package_finder().describe(name, lambda module: None, undescribed_module)
    return importlib.import_module(name)


def _package_finder() -> PackageFinder:
    return next(finder for finder in sys.meta_path if isinstance(finder, PackageFinder))
