"""Keep torch's compiler out of a worker, which saves 70 MB and a second and a half for each of sixty.

`torch.optim` imports `torch._dynamo` at its first call, only to exclude itself from compilation. In a program that
compiles nothing, a module with these two functions suffices. Any other attribute loads the real module.
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
    """Put the small module in place of the compiler, unless the compiler is already loaded."""
    if _NAME not in sys.modules:
        sys.modules[_NAME] = _CompilerStub(_NAME)


class _CompilerStub(ModuleType):
    """What optimizers call. `__path__` keeps the submodules of the real package importable."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = [str(Path(torch.__file__).parent / "_dynamo")]

    @staticmethod
    def disable(function: Callable[..., Any], recursive: bool = True, *, wrapping: bool = True) -> Callable[..., Any]:
        """Return the function unchanged: there is no compiler to exclude it from."""
        return function

    @staticmethod
    def graph_break(msg: str = "") -> None:
        """Do nothing: there is no graph."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(_NAME) is self:
            del sys.modules[_NAME]
        return getattr(importlib.import_module(_NAME), name)
