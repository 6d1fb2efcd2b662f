"""Operators of torch's dispatcher that only a card can run, and those among them that the user describes.

`@sandtable.cost("my_extension.scale")` describes the operator `my_extension::scale` as it would a function, whether the
script loads a library that registers it or has torch build one from sources. Operators of sources that are not built
are made here, and ask for a description when they are called.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["DescribedOperators"]

_Call = Callable[..., Any]


class DescribedOperators:
    """Puts descriptions in the place of operators' kernels.

    `ask` is called with a name and with what an operator without a description was called with, and raises.
    """

    def __init__(self, ask: Callable[[str, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        self._ask = ask
        self._calls: dict[str, _Call] = {}
        self._keys: dict[str, tuple[str, ...]] = {}
        self._implemented: dict[str, _Call] = {}
        self._libraries: list[Any] = []

    def describe(self, name: str, call: _Call, *, has_backward: bool) -> None:
        """Call `call` for the operator that `name` (`namespace.operator`) is, or will be, the name of.

        With `has_backward`, gradients flow through the call, whatever the library has autograd do.
        """
        self._calls[name] = call
        self._keys[name] = ("CUDA", "AutogradCUDA") if has_backward else ("CUDA",)
        self.implement()

    def implement(self) -> None:
        """Put every description in its place whose operator exists by now."""
        for name, call in self._calls.items():
            if name.count(".") == 1 and self._implemented.get(name) is not call:
                self._implement(name, call)

    def define(self, namespace: str, schemas: Iterable[str]) -> None:
        """Make operators that ask for a description, unless they exist."""
        library = self._library(namespace, "FRAGMENT")
        for schema in schemas:
            plain = schema.partition("(")[0].strip()
            if not _overloads(f"{namespace}::{plain}"):
                library.define(schema, "FROM_SCHEMA" if "!" in schema else "CONSERVATIVE")  # it may write any argument
                library.impl(plain, self._asking(f"{namespace}.{plain.partition('.')[0]}"), "CUDA")
        self.implement()

    def _asking(self, name: str) -> _Call:
        def ask(*args: Any, **options: Any) -> Any:
            return self._ask(name, args, options)

        return ask

    def _library(self, namespace: str, kind: str) -> Any:
        import torch

        library: Any = torch.library.Library(namespace, kind)  # type: ignore[no-untyped-call]
        self._libraries.append(library)  # an operator lives as long as its library
        return library

    def _implement(self, name: str, call: _Call) -> None:
        namespace, plain = name.split(".")
        overloads = _overloads(f"{namespace}::{plain}")
        if not overloads:
            return
        self._implemented[name] = call
        library = self._library(namespace, "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of a kernel that is replaced
            for overload, key in itertools.product(overloads, self._keys[name]):
                library.impl(f"{plain}.{overload}" if overload else plain, call, key, allow_override=True)


def _overloads(name: str) -> list[str]:
    """Return the overloads of an operator, of which the first has no name; none if there is no such operator."""
    import torch

    base, _, overload = name.partition(".")
    found = [schema.overload_name for schema in torch._C._jit_get_schemas_for_operator(base)]
    return [one for one in found if one == overload] if overload else found
