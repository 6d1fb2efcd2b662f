"""Frameworks: what a script asks of Accelerate and DeepSpeed that only their own calls show.

Both divide the loss by the number of micro-batches that make up an update. Whether the script makes as many is seen
from its backward passes and updates.
"""

from __future__ import annotations

from typing import Any

from sandtable.trace import EventKind
from sandtable.vgpu.observing.events import EventLog, before
from sandtable.vgpu.observing.training import is_called_by_library
from sandtable.vgpu.packages import Package

__all__ = ["observed_frameworks"]


def observed_frameworks(log: EventLog) -> tuple[Package, ...]:
    """Return what is watched in which module, once it is imported."""
    return (
        Package(name="accelerate", adaptations={"accelerate.accelerator": lambda module: _accelerate(log, module)}),
        Package(name="deepspeed", adaptations={"deepspeed.runtime.engine": lambda module: _deepspeed(log, module)}),
    )


def _accelerate(log: EventLog, module: Any) -> None:
    entered: set[int] = set()

    def on_accumulate(accelerator: Any, *models: Any) -> None:
        entered.add(id(accelerator))

    def on_backward(accelerator: Any, *args: Any, **options: Any) -> None:
        if "DEEPSPEED" not in str(accelerator.distributed_type):
            is_counted = id(accelerator) in entered or is_called_by_library()
            _note_backward(log, "Accelerate", accelerator.gradient_accumulation_steps, is_counted=is_counted)

    def on_gather(accelerator: Any, *args: Any, **options: Any) -> None:
        state = accelerator.gradient_state
        if state.in_dataloader and state.end_of_dataloader and state.remainder > 0 and not is_called_by_library():
            log.note(EventKind.PADDED_GATHER, num_real=int(state.remainder))

    before(module.Accelerator, "accumulate", on_accumulate)
    before(module.Accelerator, "backward", on_backward)
    before(module.Accelerator, "gather", on_gather)


def _deepspeed(log: EventLog, module: Any) -> None:
    def on_backward(engine: Any, *args: Any, **options: Any) -> None:
        _note_backward(log, "DeepSpeed", engine.gradient_accumulation_steps(), is_counted=is_called_by_library())

    def on_step(engine: Any, *args: Any, **options: Any) -> None:
        log.note(EventKind.ENGINE_STEP)

    before(module.DeepSpeedEngine, "backward", on_backward)
    before(module.DeepSpeedEngine, "step", on_step)


def _note_backward(log: EventLog, framework: str, num_micro_batches: Any, *, is_counted: bool) -> None:
    log.note(
        EventKind.FRAMEWORK_BACKWARD,
        framework=framework,
        num_micro_batches=int(num_micro_batches),
        is_counted=is_counted,
    )
