"""Steps: where a training step ends, which operators are the optimizer's, and when the capture may stop.

A step ends when every optimizer the script has used so far has stepped once more. After the last wanted step the
capture continues through what closes the step (logging, schedulers) and stops at the next forward pass. Ranks that talk
over their own sockets continue to the end of the script, because others would wait for one that stopped.
"""

from __future__ import annotations

import threading
from types import ModuleType
from typing import Any

from sandtable.trace import TO_THE_END
from sandtable.vgpu.stop import StopCapture

__all__ = ["StepCounter"]


class StepCounter:
    """Counts optimizer steps through torch's global optimizer hooks."""

    def __init__(self, core: ModuleType, *, wanted: int) -> None:
        self._core = core
        self._wanted = wanted
        self._counts: dict[int, int] = {}
        self._watch: Any = None
        self._goes_on = False
        self.num_steps = 0

    def go_on(self) -> None:
        """Do not stop before the script ends."""
        if not self._goes_on:
            self._goes_on = True
            self._core.note(TO_THE_END, "ranks that talk over sockets of their own run to the end of the script")

    def count(self, who: object = None) -> None:
        """Count a step of `who`: an optimizer, or the script itself where other ranks have the optimizer."""
        self._counts[id(who)] = self._counts.get(id(who), 0) + 1
        done = min(self._counts.values())
        if done > self.num_steps:
            self.num_steps = done
            self._core.mark_step(done)

    def install(self) -> None:
        """Register hooks for every optimizer of the process."""
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        register_optimizer_step_pre_hook(self._before)
        register_optimizer_step_post_hook(self._after)

    def _before(self, optimizer: object, args: Any, kwargs: Any) -> None:
        if self._counts.get(id(optimizer), 0) >= self._wanted and self._has_seen_enough:
            raise StopCapture("steps")
        self._core.set_optimizer(True)

    def _after(self, optimizer: object, args: Any, kwargs: Any) -> None:
        self._core.set_optimizer(False)
        self.count(optimizer)
        if self.num_steps >= self._wanted and self._watch is None:
            from torch.nn.modules.module import register_module_forward_pre_hook

            self._watch = register_module_forward_pre_hook(self._next_forward)

    def _next_forward(self, module: object, inputs: Any) -> None:
        if min(self._counts.values()) >= self._wanted and self._has_seen_enough:
            raise StopCapture("steps")

    @property
    def _has_seen_enough(self) -> bool:
        is_main = threading.current_thread() is threading.main_thread()
        return is_main and not self._goes_on and self.num_steps >= self._wanted
