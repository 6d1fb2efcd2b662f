"""Importing: modules of compiled packages are adapted after they have been imported, or made where they are missing.

A finder at the head of `sys.meta_path` is asked for every module that this process imports from now on, and answers for
the ones that a `Package` names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from sandtable.vgpu.packages import deepspeed, nvrtc, pynvml, transformer_engine, triton
from sandtable.vgpu.packages.package import Fill, Package
from sandtable.vgpu.packages.watcher import Watcher

__all__ = ["follow_packages"]

_PACKAGES: tuple[Callable[[Watcher], Package], ...] = (
    deepspeed.package,
    nvrtc.package,
    pynvml.package,
    transformer_engine.package,
    triton.package,
)
"""One file per package; a function each, because what is changed may report to the watcher."""


def follow_packages(watcher: Watcher, *more: Package) -> None:
    """Adapt or make modules that this process imports from now on; `more` are packages without a file here."""
    finder = _Finder((*(package(watcher) for package in _PACKAGES), *more), watcher)
    sys.meta_path.insert(0, finder)
    finder.adapt_imported()


class _Finder(MetaPathFinder):
    """Finds modules of packages that have a file here."""

    def __init__(self, packages: Iterable[Package], watcher: Watcher) -> None:
        self._watcher = watcher
        self._adaptations: dict[str, Fill] = {}
        self._compiled: dict[str, Fill] = {}
        self._missing: dict[str, tuple[Package, Fill]] = {}
        for package in packages:
            self._adaptations.update(package.adaptations)
            self._compiled.update(package.compiled)
            self._missing.update({name: (package, fill) for name, fill in package.missing.items()})

    def adapt_imported(self) -> None:
        """Adapt the modules that were imported before, as torch imports some."""
        for name, adapt in self._adaptations.items():
            if name in sys.modules:
                adapt(sys.modules[name])

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in self._compiled:
            return _made_spec(name, self._compiled[name])
        if name not in self._adaptations and name not in self._missing:
            return None
        spec = self._elsewhere(name, path, target)
        if spec is None and name in self._missing:
            return self._replace(name)
        if spec is not None and spec.loader is not None and name in self._adaptations:
            spec.loader = _AdaptingLoader(spec.loader, self._adaptations[name])
        return spec

    def _elsewhere(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        """Return what the other finders find."""
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(name, path, target) for finder in others)
        return next((spec for spec in specs if spec is not None), None)

    def _replace(self, name: str) -> ModuleSpec | None:
        """Make a module of a package that is not installed; one that lacks only this module is left as it is."""
        package, fill = self._missing[name]
        root = sys.modules.get(name.partition(".")[0])
        if "." in name and not isinstance(getattr(root, "__loader__", None), _MakingLoader):
            return None
        return _made_spec(name, fill, version=package.version, on_load=lambda: self._watcher.on_missing(package.name))


def _made_spec(
    name: str, fill: Fill, *, version: str | None = None, on_load: Callable[[], None] | None = None
) -> ModuleSpec:
    # A package, so that modules below it can be imported.
    return ModuleSpec(name, _MakingLoader(fill, version, on_load), origin="sandtable", is_package=True)


class _MakingLoader(Loader):
    """Makes an empty module and fills it."""

    def __init__(self, fill: Fill, version: str | None, on_load: Callable[[], None] | None) -> None:
        self._fill = fill
        self._version = version
        self._on_load = on_load

    def exec_module(self, module: ModuleType) -> None:
        if self._version is not None and "." not in module.__name__:
            module.__version__ = self._version  # type: ignore[attr-defined]
            if self._on_load is not None:
                self._on_load()
        self._fill(module)


class _AdaptingLoader(Loader):
    """Loads a module as `loader` does, then adapts it."""

    def __init__(self, loader: Loader, adapt: Fill) -> None:
        self._loader = loader
        self._adapt = adapt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._adapt(module)
