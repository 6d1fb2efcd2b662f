"""Frameworks: what a script asks of Accelerate, DeepSpeed and Lightning that only their own calls show.

The first two divide the loss by the number of micro-batches that make up an update. Whether the script makes as many is
seen from its backward passes and updates. Lightning decides by metrics which it is told to share, or not.
"""

from __future__ import annotations

import inspect
from typing import Any

from sandtable.trace import EventKind
from sandtable.vgpu.observing.events import EventLog, before
from sandtable.vgpu.observing.parameters import ParameterWatcher
from sandtable.vgpu.observing.training import is_called_by_library
from sandtable.vgpu.packages import Package

__all__ = ["observed_frameworks"]


_LIGHTNING = ("lightning.pytorch.core.module", "pytorch_lightning.core.module")
_MOST_METRICS = 64
_MOST_LOOKS = 4


def observed_frameworks(log: EventLog, parameters: ParameterWatcher) -> tuple[Package, ...]:
    """Return what is watched in which module, once it is imported."""
    lightning = {name: lambda module: _lightning(log, module) for name in _LIGHTNING}
    return (
        Package(name="lightning", adaptations=lightning),
        Package(name="accelerate", adaptations={"accelerate.accelerator": lambda module: _accelerate(log, module)}),
        Package(
            name="deepspeed",
            adaptations={"deepspeed.runtime.engine": lambda module: _deepspeed(log, parameters, module)},
        ),
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


def _deepspeed(log: EventLog, parameters: ParameterWatcher, module: Any) -> None:
    num_steps = 0

    def on_backward(engine: Any, *args: Any, **options: Any) -> None:
        _note_backward(log, "DeepSpeed", engine.gradient_accumulation_steps(), is_counted=is_called_by_library())

    def on_step(engine: Any, *args: Any, **options: Any) -> None:
        nonlocal num_steps
        num_steps += 1
        looks = num_steps <= _MOST_LOOKS
        holders = parameters.holders_of(list(engine.module.parameters())) if looks else []
        log.note(EventKind.ENGINE_STEP, holders=holders)

    for name, notice in (("backward", on_backward), ("step", on_step)):
        if hasattr(module.DeepSpeedEngine, name):
            before(module.DeepSpeedEngine, name, notice)


def _note_backward(log: EventLog, framework: str, num_micro_batches: Any, *, is_counted: bool) -> None:
    log.note(
        EventKind.FRAMEWORK_BACKWARD,
        framework=framework,
        num_micro_batches=int(num_micro_batches),
        is_counted=is_counted,
    )


def _lightning(log: EventLog, module: Any) -> None:
    signature = inspect.signature(module.LightningModule.log)
    seen = 0

    def on_log(*args: Any, **options: Any) -> None:
        import torch

        nonlocal seen
        call = signature.bind(*args, **options)
        call.apply_defaults()
        given = call.arguments
        value, is_shared = given["value"], given["sync_dist"] or given["rank_zero_only"]
        if is_shared or not isinstance(value, torch.Tensor) or given["name"] not in _monitored(given["self"]):
            return
        seen += 1
        if seen <= _MOST_METRICS:
            identities, outlines = log.core.identities_of([value.detach()])
            log.note(EventKind.OWN_METRIC, name=given["name"], identity=int(identities[0]), outline=int(outlines[0]))

    before(module.LightningModule, "log", on_log)


def _monitored(module: Any) -> set[str]:
    """Return the names of the metrics by which a trainer's callbacks and schedulers decide."""
    trainer = module._trainer
    if trainer is None or trainer.world_size < 2:
        return set()
    parts = [*trainer.callbacks, *trainer.lr_scheduler_configs]
    return {str(name) for part in parts if (name := getattr(part, "monitor", None))}
