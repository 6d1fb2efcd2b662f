"""`bitsandbytes.optim.optimizer`, of which a replacement has only the names: classes from which others are derived.

Trainers derive GaLore's optimizers from them wherever bitsandbytes is there, and make one only if asked to.
"""

from __future__ import annotations

from typing import Any

from sandtable.vgpu.packages.bitsandbytes.optimizers import GlobalOptimManager

__all__ = ["GlobalOptimManager", "Optimizer1State", "Optimizer2State", "Optimizer8bit"]


class Optimizer8bit:
    """The base of all; the package's own has the methods that derived classes call."""

    def __init__(self, *args: Any, **options: Any) -> None:
        raise ModuleNotFoundError(
            f"{type(self).__name__} is derived from a class of bitsandbytes, which is not installed here, and its "
            "replacement has only the name; install it (pip install --no-deps bitsandbytes), or take another optimizer"
        )


class Optimizer1State(Optimizer8bit):
    """The base of optimizers with one state per parameter."""


class Optimizer2State(Optimizer8bit):
    """The base of optimizers with two states per parameter."""
