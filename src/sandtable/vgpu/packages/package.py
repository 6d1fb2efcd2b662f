"""A package: what a rehearsal changes in one package, and what stands in for the parts that only a card can run."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType

__all__ = ["Fill", "Package", "names_of"]

Fill = Callable[[ModuleType], None]
"""Puts functions and classes into a module, or replaces some that are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """What is done with the modules of one package, by their full names.

    `adaptations` change modules right after their own code ran. `compiled` modules are never loaded from their files:
    they are empty modules that we fill, whether the package is installed or not. `missing` modules are made and filled
    only if the package is not installed; they are listed with their parents, and `version` is then the package's.
    `distribution` is what pip calls it, if not `name`.
    """

    name: str
    adaptations: Mapping[str, Fill] = field(default_factory=dict)
    compiled: Mapping[str, Fill] = field(default_factory=dict)
    missing: Mapping[str, Fill] = field(default_factory=dict)
    version: str = "0"
    distribution: str = ""

    @property
    def missing_roots(self) -> tuple[str, ...]:
        """The modules that a script imports to have the package, where it is not installed."""
        return tuple(name for name in self.missing if "." not in name)


def names_of(*modules: str) -> Fill:
    """Return a function that fills a module with the public names of these modules of ours; none make it empty."""

    def fill(module: ModuleType) -> None:
        for name in modules:
            ours = importlib.import_module(f"sandtable.vgpu.packages.{name}")
            for public in ours.__all__:
                setattr(module, public, getattr(ours, public))

    return fill
