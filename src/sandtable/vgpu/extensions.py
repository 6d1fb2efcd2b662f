"""Extensions: libraries that a script loads may bring kernels for a card, which ours replace as they do torch's own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from types import ModuleType
from typing import ParamSpec, TypeVar

from sandtable.vgpu.packages.descriptions import needs_card
from sandtable.vgpu.undescribed import undescribed_module

__all__ = ["follow_extensions"]

P = ParamSpec("P")
R = TypeVar("R")


_create_module = ExtensionFileLoader.create_module


def _made_if_unloadable(loader: ExtensionFileLoader, spec: ModuleSpec) -> ModuleType:
    """Load an extension module; one that needs CUDA's libraries is made of functions that ask for a description."""
    try:
        return _create_module(loader, spec)
    except ImportError as error:
        if not needs_card(error):
            raise
        module = ModuleType(spec.name)
        undescribed_module(module)
        return module


def follow_extensions(core: ModuleType, on_loaded: Callable[[], None]) -> None:
    """Replace the kernels of every extension module and operator library that this process loads from now on.

    `on_loaded` is called after each, when the operators that it registers exist.
    """
    import torch

    def following(load: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(load)
        def load_and_replace(*args: P.args, **kwargs: P.kwargs) -> R:
            core.begin_extension()
            try:
                return load(*args, **kwargs)
            finally:
                core.end_extension()
                on_loaded()

        return load_and_replace

    ExtensionFileLoader.create_module = following(_made_if_unloadable)  # type: ignore[method-assign, arg-type]
    torch.ops.load_library = following(torch.ops.load_library)  # type: ignore[method-assign]
