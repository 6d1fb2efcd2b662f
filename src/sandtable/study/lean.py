"""A worker without torch's compiler: 70 MB and a second and a half less for each of sixty.

`torch.optim` imports `torch._dynamo` at its first call, only to tell the compiler to keep out of it. In a program that
compiles nothing, a module with these two words does the same. Whoever asks it for anything else gets the real one.
"""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

__all__ = ["leave_out_compiler"]

_NAME = "torch._dynamo"


def leave_out_compiler() -> None:
    """Put the small module in the compiler's place, unless the compiler is already there."""
    if _NAME not in sys.modules:
        sys.modules[_NAME] = _KeepOut(_NAME)


class _KeepOut(ModuleType):
    """Has what optimizers call. `__path__` lets parts of the real package be imported as ever."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = [str(Path(torch.__file__).parent / "_dynamo")]

    @staticmethod
    def disable(function: Callable[..., Any], recursive: bool = True, *, wrapping: bool = True) -> Callable[..., Any]:
        """The function as it is: there is no compiler to keep out."""
        return function

    @staticmethod
    def graph_break(msg: str = "") -> None:
        """Nothing: there is no graph."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(_NAME) is self:
            del sys.modules[_NAME]
        return getattr(importlib.import_module(_NAME), name)
