"""Skipped updates: mixed precision leaves out the update when a gradient is not finite, and such a step is none."""

from __future__ import annotations

import functools
import gc
import sys
from typing import Any

from sandtable.vgpu.steps import StepCounter

__all__ = ["SkippedUpdates"]


class SkippedUpdates:
    """Counts the updates that gradient scalers leave out, in torch and in DeepSpeed."""

    def __init__(self, steps: StepCounter) -> None:
        self._steps = steps
        self._num_skipped = 0

    def install(self) -> None:
        """Watch the gradient scalers of this process."""
        from torch.amp import GradScaler

        step = GradScaler.step

        @functools.wraps(step)
        def count_skipped(scaler: Any, *args: Any, **options: Any) -> Any:
            before = self._steps.num_updates
            result = step(scaler, *args, **options)
            self._num_skipped += self._steps.num_updates == before
            return result

        GradScaler.step = count_skipped  # type: ignore[assignment, method-assign]

    def describe(self) -> str:
        """Return who skipped how many updates, in words; nothing if nobody did."""
        counts = {"GradScaler": self._num_skipped, "DeepSpeed": _skipped_by_deepspeed()}
        return " and ".join(
            f"{name} skipped {count} {'update' if count == 1 else 'updates'}" for name, count in counts.items() if count
        )


def _skipped_by_deepspeed() -> int:
    """Return how many updates DeepSpeed's engines have skipped: they count them themselves."""
    module = sys.modules.get("deepspeed")
    engine = getattr(module, "DeepSpeedEngine", None)
    if engine is None:
        return 0
    return sum(int(found.skipped_steps) for found in gc.get_objects() if issubclass(type(found), engine))
