"""Extensions: libraries that a script loads may bring kernels for a card, which ours replace as they do torch's own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader
from types import ModuleType
from typing import ParamSpec, TypeVar

__all__ = ["follow_extensions"]

P = ParamSpec("P")
R = TypeVar("R")


def follow_extensions(core: ModuleType) -> None:
    """Replace the kernels of every extension module and operator library that this process loads from now on."""
    import torch

    def following(load: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(load)
        def load_and_replace(*args: P.args, **kwargs: P.kwargs) -> R:
            core.begin_extension()
            try:
                return load(*args, **kwargs)
            finally:
                core.end_extension()

        return load_and_replace

    ExtensionFileLoader.create_module = following(ExtensionFileLoader.create_module)  # type: ignore[method-assign]
    torch.ops.load_library = following(torch.ops.load_library)  # type: ignore[method-assign]
