"""`triton.language` where Triton is not installed: names without a meaning, because no kernel's body runs."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable
from types import ModuleType
from typing import Any

from sandtable.vgpu.packages.package import Fill

__all__ = ["KernelConstant", "language_modules"]


class LanguageName:
    """A name of the language, such as `tl.float32` or `tl.load`."""

    def __init__(self, name: str) -> None:
        self.__name__ = self.__qualname__ = name

    def __call__(self, *_: Any, **__: Any) -> LanguageName:
        return LanguageName(f"{self.__name__}(...)")

    def __getattr__(self, name: str) -> LanguageName:
        if name.startswith("__"):
            raise AttributeError(name)
        return LanguageName(f"{self.__name__}.{name}")

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __or__

    def __repr__(self) -> str:
        return f"triton.language.{self.__name__}"


class KernelConstant:
    """`tl.constexpr`: a number that a kernel is compiled with."""

    def __init__(self, value: Any) -> None:
        self.value: Any = value.value if isinstance(value, KernelConstant) else value

    def __bool__(self) -> bool:
        return bool(self.value)

    def __index__(self) -> int:
        return operator.index(self.value)

    def __eq__(self, other: object) -> bool:
        return bool(self.value == _plain(other))

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return f"constexpr[{self.value}]"


KernelConstant.__name__ = KernelConstant.__qualname__ = "constexpr"  # as annotations of kernels are told apart


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, KernelConstant) else value


def _add_arithmetic(kind: type[KernelConstant]) -> None:
    def binary(function: Callable[[Any, Any], Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
        def forward(self: KernelConstant, other: Any) -> KernelConstant:
            return kind(function(self.value, _plain(other)))

        def backward(self: KernelConstant, other: Any) -> KernelConstant:
            return kind(function(_plain(other), self.value))

        return forward, backward

    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift"):
        function = getattr(operator, f"{name}_" if name in ("and", "or") else name)
        forward, backward = binary(function)
        setattr(kind, f"__{name}__", forward)
        setattr(kind, f"__r{name}__", backward)
    for name in ("lt", "le", "gt", "ge"):
        setattr(kind, f"__{name}__", binary(getattr(operator, name))[0])


_add_arithmetic(KernelConstant)

_CLASSES = {name: type(name, (), {}) for name in ("tensor", "block_type", "tuple_type", "tensor_descriptor")}
_MODULES = ("", ".core", ".standard", ".math", ".random", ".semantic", ".extra", ".extra.libdevice", ".extra.cuda",
            ".extra.cuda.libdevice")  # fmt: skip


class _NamedType(LanguageName):
    """`tl.dtype` and `tl.pointer_type`, of which types are instances."""


def language_modules() -> dict[str, Fill]:
    """Return what each module of the language is filled with, by its full name."""
    return {f"triton.language{name}": _fill for name in _MODULES}


def _fill(module: ModuleType) -> None:
    names: dict[str, Any] = {}

    def find(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        return names.setdefault(name, _NamedType(name))

    vars(module).update(_CLASSES, constexpr=KernelConstant, dtype=_NamedType, pointer_type=_NamedType, __getattr__=find)
    if module.__name__ == "triton.language":
        for name in _MODULES[1:]:
            importlib.import_module(f"triton.language{name}")
