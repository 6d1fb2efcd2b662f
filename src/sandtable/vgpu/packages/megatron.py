"""Megatron-LM: phases of the work that it does outside autograd and torch's optimizers, and a check of all shards.

After the last backward pass it reduces gradients over ranks (`finalize_model_grads`), and around an optimizer of torch
it copies gradients and parameters, takes norms and gathers (`MegatronOptimizer.step`).

Megatron-FSDP has ranks tell each other the shapes of their shards, and stops unless these make up the whole. Another
rank speaks for most, with the shape of its own, so this check is left out. The shapes are still exchanged, in as many
bytes on every rank, because ranks that run later may hold a shape that takes more. The same check of checkpoints is
left out. Copies of a shard are not shared out among the ranks to be written, since most of these do not run: the first
rank that has one writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from sandtable.vgpu.packages.package import Package
from sandtable.vgpu.packages.watcher import Watcher, within

__all__ = ["package"]

_LONG = 2**40
"""Integers from here on take as many bytes when they are pickled."""


def package(watcher: Watcher) -> Package:
    """Return what is changed in which module."""

    def follow_reductions(module: ModuleType) -> None:
        module.finalize_model_grads = within(watcher.after_backward, module.finalize_model_grads)  # type: ignore[attr-defined]

    def follow_updates(module: ModuleType) -> None:
        for thing in vars(module).values():
            if isinstance(thing, type) and thing.__module__ == module.__name__ and "step" in vars(thing):
                thing.step = within(watcher.around_optimizer, thing.step)  # type: ignore[attr-defined]

    def trust_shards(module: ModuleType) -> None:
        module.dist = _EvenExchange(module.__name__)  # type: ignore[attr-defined]
        module.validate_uneven_dtensor = module.gather_and_compute_chunk_metadata  # type: ignore[attr-defined]

    def trust_checkpoints(module: ModuleType) -> None:
        module.validate_sharding_integrity = lambda *args, **options: None  # type: ignore[attr-defined]

    def leave_shards(module: ModuleType) -> None:
        module.FullyParallelSaveStrategyWrapper.apply_saving_parallelization = lambda *args: None

    return Package(
        name="megatron",
        adaptations={
            "megatron.core.distributed.finalize_model_grads": follow_reductions,
            "megatron.core.optimizer.optimizer": follow_updates,
            "megatron.core.dist_checkpointing.validation": trust_checkpoints,
            "megatron.core.dist_checkpointing.strategies.fully_parallel": leave_shards,
            "megatron.core.distributed.fsdp.src.megatron_fsdp.uneven_dtensor": trust_shards,
            "megatron_fsdp.uneven_dtensor": trust_shards,  # as pip installs it
        },
    )


class _EvenExchange(ModuleType):
    """`torch.distributed` to a module of Megatron-FSDP, but shapes take the same number of bytes on all ranks."""

    def __getattr__(self, name: str) -> Any:
        import torch.distributed

        return getattr(torch.distributed, name)

    def all_gather_object(self, shapes: list[Any], shape: Sequence[int], group: Any = None) -> None:
        """Gather the shapes of shards."""
        import torch.distributed

        torch.distributed.all_gather_object(shapes, [length + _LONG for length in shape], group)
        shapes[:] = [[length - _LONG for length in shape] for shape in shapes]
