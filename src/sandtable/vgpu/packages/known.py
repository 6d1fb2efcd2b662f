"""Known packages: those that have a file here, and how a rank follows their imports."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping

from sandtable.vgpu.packages import deepspeed, flash_attn, nvrtc, pynvml, transformer_engine, triton, xformers
from sandtable.vgpu.packages.importing import PackageFinder
from sandtable.vgpu.packages.package import Package
from sandtable.vgpu.packages.watcher import Watcher

__all__ = ["PACKAGE_NAMES", "follow_packages"]

_PACKAGES: Mapping[str, Callable[[Watcher], Package]] = {
    "deepspeed": deepspeed.package,
    "flash_attn": flash_attn.package,
    "nvrtc": nvrtc.package,
    "pynvml": pynvml.package,
    "transformer_engine": transformer_engine.package,
    "triton": triton.package,
    "xformers": xformers.package,
}
"""By name; a function each, because what is changed may report to the watcher."""

PACKAGE_NAMES = tuple(_PACKAGES)
"""What `--without` may name."""


def follow_packages(watcher: Watcher, *more: Package, without: Collection[str] = ()) -> None:
    """Adapt or make modules that this process imports from now on.

    `more` are packages without a file here. Packages named in `without` stay missing if they are.
    """
    packages = [describe(watcher) for describe in _PACKAGES.values()]
    finder = PackageFinder([*packages, *more], watcher, without=without)
    sys.meta_path.insert(0, finder)
    finder.adapt_imported()
