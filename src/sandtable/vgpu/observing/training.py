"""Training: backward passes, gradient scaling and clipping, schedulers and wrappers, in the order of their calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sandtable.trace import EventKind
from sandtable.vgpu.observing.events import EventLog, after, before

__all__ = ["follow_training"]


def follow_training(log: EventLog, index_of: Callable[[Any], int]) -> None:
    """Note these calls from now on; `index_of` numbers watched parameters."""
    import torch
    from torch.amp import GradScaler
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

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
    before(
        GradScaler,
        "unscale_",
        lambda self, optimizer: log.note(
            EventKind.UNSCALE, subject=number("optimizer", optimizer), is_enabled=bool(self._enabled)
        ),
    )
    before(
        GradScaler,
        "step",
        lambda self, optimizer, *a, **o: log.note(
            EventKind.SCALER_STEP, subject=number("optimizer", optimizer), is_enabled=bool(self._enabled)
        ),
    )
    before(
        LRScheduler,
        "step",
        lambda self, *a, **o: log.note(
            EventKind.SCHEDULER_STEP,
            subject=number("scheduler", self),
            name=type(self).__name__,
            optimizer=number("optimizer", self.optimizer),
        ),
    )

    def clip(how: str) -> Callable[..., None]:
        def notice(parameters: Any, limit: Any = None, *args: Any, **options: Any) -> None:
            tensors = [parameters] if isinstance(parameters, torch.Tensor) else parameters
            if isinstance(tensors, (list, tuple)):  # a generator must stay unread
                log.note(EventKind.CLIP, how=how, parameters=[index_of(tensor) for tensor in tensors])
            else:
                log.note(EventKind.CLIP, how=how, parameters=[])

        return notice

    for name, how in (("clip_grad_norm_", "norm"), ("clip_grad_value_", "value")):
        before(torch.nn.utils, name, clip(how))
        setattr(torch.nn.utils.clip_grad, name, getattr(torch.nn.utils, name))

    after(
        DistributedDataParallel,
        "__init__",
        lambda result, self, module, *a, **o: log.note(
            EventKind.WRAPPED,
            subject=number("module", module),
            wrapper="DistributedDataParallel",
            finds_unused=bool(self.find_unused_parameters),
            has_buffers=any(True for _ in module.buffers()),
        ),
    )
