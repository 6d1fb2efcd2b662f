"""Training: backward passes, gradient scaling, schedulers and wrappers, in the order of their calls."""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any

from sandtable.trace import EventKind
from sandtable.vgpu.compatibility import torch_directory
from sandtable.vgpu.failures import is_library
from sandtable.vgpu.observing.clipping import is_flat_shard
from sandtable.vgpu.observing.events import EventLog, after, before

__all__ = ["follow_training", "is_called_by_library"]

_OWN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
_TORCH = os.path.join(torch_directory(), "")


def follow_training(log: EventLog) -> None:
    """Note these calls from now on."""
    import torch
    from torch.amp import GradScaler
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim import Optimizer

    def number(kind: str, thing: Any) -> int:
        return log.number_of(kind, thing)

    before(
        Optimizer,
        "zero_grad",
        lambda self, *a, **o: log.note(EventKind.ZERO_GRAD, subject=number("optimizer", self), of="optimizer"),
    )
    before(
        torch.nn.Module,
        "zero_grad",
        lambda self, *a, **o: log.note(EventKind.ZERO_GRAD, subject=number("module", self), of="module"),
    )
    after(GradScaler, "scale", lambda result, self, loss: _note_scale(log, self, loss, result))
    before(
        GradScaler,
        "unscale_",
        lambda self, optimizer: log.note(
            EventKind.UNSCALE,
            subject=number("optimizer", optimizer),
            is_enabled=bool(self._enabled),
            has_scaled=self._scale is not None,
        ),
    )
    before(
        GradScaler,
        "step",
        lambda self, optimizer, *a, **o: log.note(
            EventKind.SCALER_STEP,
            subject=number("optimizer", optimizer),
            is_enabled=bool(self._enabled),
            was_unscaled=_is_unscaled(self, optimizer),
            has_scaled=self._scale is not None,
            num_flat_shards=_num_own_shards(self, optimizer),
        ),
    )
    _follow_schedulers(log)
    after(
        DistributedDataParallel,
        "__init__",
        lambda result, self, module, *a, **o: log.note(
            EventKind.WRAPPED,
            subject=number("module", module),
            wrapper="DistributedDataParallel",
            finds_unused=bool(self.find_unused_parameters),
            has_buffers=any(True for _ in module.buffers()),
            number=number("wrapper", self),
            group=torch.distributed.get_process_group_ranks(self.process_group),
            broadcasts_buffers=bool(self.broadcast_buffers),
            input_card=(self.device_ids or [-1])[0],
            module_cards=sorted({tensor.device.index for tensor in module.parameters() if tensor.is_cuda}),
        ),
    )


def _note_scale(log: EventLog, scaler: Any, loss: Any, result: Any) -> None:
    """Note by which number a loss is multiplied."""
    import torch

    if isinstance(loss, torch.Tensor) and scaler._enabled:
        (before_factor, _, _), (after_factor, _, _) = log.core.scales_of([loss.detach(), result.detach()])
        log.note(EventKind.SCALE, factor=after_factor / before_factor if before_factor else 1.0)


def _num_own_shards(scaler: Any, optimizer: Any) -> int:
    """Return how many of the tensors that a scaler looks into are parts, of which other ranks hold the rest.

    A scaler that asks the other ranks what they found is a class of its own (ShardedGradScaler).
    """
    import torch

    if type(scaler) not in (torch.amp.GradScaler, torch.cuda.amp.GradScaler):
        return 0
    return sum(is_flat_shard(tensor) for group in optimizer.param_groups for tensor in group["params"])


def _is_unscaled(scaler: Any, optimizer: Any) -> bool:
    """Return whether a scaler, which may have its own way to do that, has unscaled the gradients of this update."""
    state = scaler._per_optimizer_states.get(id(optimizer), {})
    return getattr(state.get("stage"), "name", "READY") != "READY"


def _follow_schedulers(log: EventLog) -> None:
    from torch.optim.lr_scheduler import LRScheduler

    before(
        LRScheduler,
        "step",
        lambda self, *a, **o: log.note(
            EventKind.SCHEDULER_STEP,
            subject=log.number_of("scheduler", self),
            name=type(self).__name__,
            optimizer=log.number_of("optimizer", _innermost(self.optimizer)),
            is_initial=bool(getattr(self, "_is_initial", False)),
            horizon=_horizon(self),
            is_by_library=is_called_by_library(),
        ),
    )


def _innermost(optimizer: Any) -> Any:
    """Return the optimizer inside of those that wrap it, as Accelerate's do."""
    from torch.optim import Optimizer

    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    return optimizer


def is_called_by_library() -> bool:
    """Return whether a library that is not torch, such as Accelerate, makes the call that is watched."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_OWN, _TORCH)):
            return is_library(file)
        frame = frame.f_back
    return False


def _horizon(scheduler: Any) -> int:
    """Return the number of steps after which a schedule is over, as far as it was told; 0 if it was not."""
    for name in ("total_steps", "T_max", "total_iters"):
        if isinstance(steps := getattr(scheduler, name, None), int):
            return steps
    for schedule in getattr(scheduler, "lr_lambdas", ()):
        options = getattr(schedule, "keywords", {})
        if isinstance(steps := options.get("num_training_steps"), int):
            return steps
    return 0
