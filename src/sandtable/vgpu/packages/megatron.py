"""Megatron-LM: phases of the work that it does outside autograd and torch's optimizers.

After the last backward pass it reduces gradients over ranks (`finalize_model_grads`), and around an optimizer of torch
it copies gradients and parameters, takes norms and gathers (`MegatronOptimizer.step`).
"""

from __future__ import annotations

from types import ModuleType

from sandtable.vgpu.packages.package import Package
from sandtable.vgpu.packages.watcher import Watcher, within

__all__ = ["package"]


def package(watcher: Watcher) -> Package:
    """Return what is changed in which module."""

    def follow_reductions(module: ModuleType) -> None:
        module.finalize_model_grads = within(watcher.after_backward, module.finalize_model_grads)  # type: ignore[attr-defined]

    def follow_updates(module: ModuleType) -> None:
        for thing in vars(module).values():
            if isinstance(thing, type) and thing.__module__ == module.__name__ and "step" in vars(thing):
                thing.step = within(watcher.around_optimizer, thing.step)  # type: ignore[attr-defined]

    return Package(
        name="megatron",
        adaptations={
            "megatron.core.distributed.finalize_model_grads": follow_reductions,
            "megatron.core.optimizer.optimizer": follow_updates,
        },
    )
