"""Undescribed calls: what happens where a script calls compiled code that nobody described, and what is shown of it."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any, NoReturn

__all__ = ["ask_for_description", "description_remedy", "undescribed_call", "undescribed_module"]

_UNDESCRIBED = re.compile(r"(\S+\(.*\) is compiled code for a card and must be described to be rehearsed); ([^\n]+)")
_SHAPELESS = re.compile(r"every operator needs a shape function, but (?!aten::)(\w+::\w+)\S* has none")


def undescribed_module(module: ModuleType) -> None:
    """Have every name of the module that is not described be a function that raises when it is called."""

    def get(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(f"module '{module.__name__}' has no attribute '{attribute}'")

        def undescribed(*args: Any, **options: Any) -> Any:
            ask_for_description(f"{module.__name__}.{attribute}", args, options)

        return undescribed

    module.__getattr__ = get  # type: ignore[method-assign]


def ask_for_description(name: str, args: tuple[Any, ...], options: dict[str, Any]) -> NoReturn:
    """Raise an error that shows a call which nobody described, and how to describe it."""
    raise RuntimeError(_remedy(name, args, options))


def undescribed_call(message: str) -> tuple[str, str] | None:
    """Find such an error in a message: what was called, and how to describe it."""
    match = _UNDESCRIBED.search(message)
    return None if match is None else (match[1], match[2])


def description_remedy(message: str) -> str:
    """Return how to describe what an error is about; nothing for other errors."""
    undescribed, shapeless = undescribed_call(message), _SHAPELESS.search(message)
    if shapeless is None:
        return "" if undescribed is None else undescribed[1]
    operator = shapeless[1].replace("::", ".")
    return (
        f"describe what {shapeless[1]} returns and its work by a function under @sandtable.cost({operator!r}), and "
        "pass its file: sandtable run --costs costs.py (docs/packages.md); or register its shapes, as the error says"
    )


def _remedy(name: str, args: tuple[Any, ...], options: dict[str, Any]) -> str:
    shown = [_shown(value) for value in args] + [f"{key}={_shown(value)}" for key, value in options.items()]
    return (
        f"{name}({', '.join(shown)}) is compiled code for a card and must be described to be rehearsed; write a "
        f"function with its arguments under @sandtable.cost({name!r}) that returns sandtable.Kernel(outputs=..., "
        "flops=..., bytes=...), and pass its file: sandtable run --costs costs.py (docs/packages.md)"
    )


def _shown(value: Any) -> str:
    import torch

    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
