"""Importing: modules of compiled packages are adapted after they have been imported, or made where they are missing.

A finder at the head of `sys.meta_path` is asked for every module that this process imports from now on, and answers for
the ones that a `Package` names. It also lists missing packages among the installed distributions, because libraries ask
for a package's version before they import it.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from types import ModuleType
from typing import Any

from sandtable.vgpu.packages.package import Fill, Package
from sandtable.vgpu.packages.watcher import Watcher

__all__ = ["PackageFinder"]


class PackageFinder(DistributionFinder):
    """Finds modules of packages that have a file here.

    Packages named in `without` stay missing if they are.
    """

    def __init__(self, packages: Iterable[Package], watcher: Watcher, *, without: Collection[str] = ()) -> None:
        self._watcher = watcher
        self._adaptations: dict[str, list[Fill]] = defaultdict(list)
        self._compiled: dict[str, tuple[Package, Fill]] = {}
        self._missing: dict[str, tuple[Package, Fill]] = {}
        self._root_packages: dict[str, Package] = {}
        self._without = frozenset(without)
        self._noted: set[str] = set()
        self._described: dict[str, list[Fill]] = {}
        for package in packages:
            for name, adapt in package.adaptations.items():
                self._adaptations[name].append(adapt)
            self._compiled.update({name: (package, fill) for name, fill in package.compiled.items()})
            if package.name not in without:
                self._missing.update({name: (package, fill) for name, fill in package.missing.items()})
                self._root_packages.update(dict.fromkeys(package.missing_roots, package))

    def describe(self, name: str, fill: Fill, make: Fill) -> None:
        """Fill module `name` with what a user describes; where it cannot be imported, `make` makes it first."""
        fills = self._described.setdefault(name, [make])
        fills.append(fill)
        if name in sys.modules:
            fill(sys.modules[name])

    def fill_described(self, module: ModuleType) -> None:
        """Fill a module that was loaded from its file, past the import system, with what a user describes of it."""
        for fill in self._described.get(module.__name__, ())[1:]:
            fill(module)

    def adapt_imported(self) -> None:
        """Adapt the modules that were imported before, as torch imports some."""
        for name in self._adaptations:
            if name in sys.modules:
                self._adapt(sys.modules[name], name)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in self._compiled:
            return self._replace_compiled(name)
        if name in self._adaptations or name in self._missing:
            spec = self._elsewhere(name, path, target)
            if spec is not None and spec.loader is not None and name in self._adaptations:
                spec.loader = _AdaptingLoader(spec.loader, lambda module: self._adapt(module, name))
            if spec is not None or name not in self._missing:
                return spec
            return self._replace(name)
        if name in self._described:
            return self._describe_found(name, path, target)
        root = name.partition(".")[0]
        if root in self._root_packages and _is_made(sys.modules.get(root)):
            self._reject(name, self._root_packages[root])
        return None

    def find_distributions(self, context: Any = DistributionFinder.Context()) -> Iterator[Distribution]:  # noqa: B008
        """Yield the packages that are not installed here but can be imported."""
        for package in {id(package): package for package in self._root_packages.values()}.values():
            distribution = _MissingDistribution(package)
            if context.name is not None and _normalised(context.name) != _normalised(distribution.metadata["Name"]):
                continue
            if all(self._elsewhere(root, None, None) is None for root in package.missing_roots):
                yield distribution

    def _adapt(self, module: ModuleType, name: str) -> None:
        """Apply what all packages have for this module, in their order."""
        for adapt in self._adaptations[name]:
            adapt(module)

    def _describe_found(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec:
        spec = self._elsewhere(name, path, target)
        is_found = spec is not None and spec.loader is not None
        fills = self._described[name][is_found:]  # the first makes a module that is not there

        def fill(module: ModuleType) -> None:
            for one in fills:
                one(module)

        if spec is None or spec.loader is None:
            return _made_spec(name, fill)
        spec.loader = _AdaptingLoader(spec.loader, fill)
        return spec

    def _elsewhere(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        """Return what the other finders find."""
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(name, path, target) for finder in others)
        return next((spec for spec in specs if spec is not None), None)

    def _replace_compiled(self, name: str) -> ModuleSpec | None:
        """Make a compiled module; it may be all that a script imports of a package that is not installed."""
        package, fill = self._compiled[name]
        is_missing = bool(package.missing) and self._elsewhere(package.name, None, None) is None
        if is_missing and package.name in self._without:
            return None
        return _made_spec(name, fill, on_load=(lambda: self._note(package)) if is_missing else None)

    def _replace(self, name: str) -> ModuleSpec | None:
        """Make a module of a package that is not installed; one that lacks only this module is left as it is."""
        package, fill = self._missing[name]
        if "." in name and not _is_made(sys.modules.get(name.partition(".")[0])):
            return None
        if "." in name:
            return _made_spec(name, fill)
        return _made_spec(name, fill, version=package.version, on_load=lambda: self._note(package))

    def _note(self, package: Package) -> None:
        if package.name not in self._noted:
            self._noted.add(package.name)
            self._watcher.on_missing(package.name)

    def _reject(self, name: str, package: Package) -> None:
        raise ModuleNotFoundError(
            f"No module named '{name}': {package.name} is not installed here, and its replacement has no such module; "
            f"install {package.name}, or rehearse as if there were none: sandtable run --without {package.name}",
            name=name,
        )


def _is_made(module: ModuleType | None) -> bool:
    return isinstance(getattr(module, "__loader__", None), _MakingLoader)


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _made_spec(
    name: str, fill: Fill, *, version: str | None = None, on_load: Callable[[], None] | None = None
) -> ModuleSpec:
    # A package, so that modules below it can be imported.
    return ModuleSpec(name, _MakingLoader(fill, version, on_load), origin="sandtable", is_package=True)


class _MissingDistribution(Distribution):
    """What pip would have left of a package that is not installed."""

    def __init__(self, package: Package) -> None:
        self._package = package

    def read_text(self, filename: str) -> str | None:
        if filename == "METADATA":
            name = self._package.distribution or self._package.name
            return f"Metadata-Version: 2.1\nName: {name}\nVersion: {self._package.version}\n"
        return "\n".join(self._package.missing_roots) if filename == "top_level.txt" else None

    def locate_file(self, path: Any) -> Any:
        return path


class _MakingLoader(Loader):
    """Makes an empty module and fills it."""

    def __init__(self, fill: Fill, version: str | None, on_load: Callable[[], None] | None) -> None:
        self._fill = fill
        self._version = version
        self._on_load = on_load

    def exec_module(self, module: ModuleType) -> None:
        if self._version is not None:
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
