"""Importing: modules of compiled packages are adapted right after they have been imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from sandtable.vgpu.packages import deepspeed
from sandtable.vgpu.packages.watcher import Watcher

__all__ = ["follow_packages"]

Adaptation = Callable[[ModuleType], None]


def follow_packages(watcher: Watcher, *more: Mapping[str, Adaptation]) -> None:
    """Adapt modules that this process imports from now on; `more` are adaptations besides those of packages."""
    adaptations = deepspeed.adaptations(watcher)
    for others in more:
        adaptations |= others
    sys.meta_path.insert(0, _Finder(adaptations))


class _Finder(MetaPathFinder):
    """Finds modules that are adapted where other finders do, and has them adapted after they are loaded."""

    def __init__(self, adaptations: Mapping[str, Adaptation]) -> None:
        self._adaptations = adaptations

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._adaptations:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _AdaptingLoader(spec.loader, self._adaptations[name])
        return spec


class _AdaptingLoader(Loader):
    """Loads a module as `loader` does, then adapts it."""

    def __init__(self, loader: Loader, adapt: Adaptation) -> None:
        self._loader = loader
        self._adapt = adapt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._adapt(module)
