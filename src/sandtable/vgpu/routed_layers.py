"""Routed layers: which layer of the model runs, for a routing that differs from layer to layer.

A layer's number is its module's `layer_number` less one (Megatron counts from 1), else the first number in its name:
`model.layers.3.mlp.gate` is in layer 3. Recomputed layers run their modules again, so they route as they did before.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

__all__ = ["follow_layers"]


def follow_layers(core: ModuleType) -> None:
    """Tell the core about each layer before it runs."""
    from torch.nn.modules.module import register_module_forward_pre_hook

    numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    def enter(module: Any, _: Any) -> None:
        if module not in numbers:
            for name, part in module.named_modules():
                numbers.setdefault(part, _layer_number(name, part))
        if numbers[module] >= 0:
            core.set_routing_layer(numbers[module])

    register_module_forward_pre_hook(enter)


def _layer_number(name: str, module: Any) -> int:
    number = getattr(module, "layer_number", None)
    if isinstance(number, int) and number > 0:
        return number - 1
    return next((int(part) for part in name.split(".") if part.isdigit()), -1)
