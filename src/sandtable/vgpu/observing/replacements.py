"""Replacements: what gives a model parameters that were not there when its optimizer was made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sandtable.trace import EventKind, Line
from sandtable.vgpu.observing.events import EventLog, before

__all__ = ["follow_replacements"]


def follow_replacements(log: EventLog, has_optimizer: Callable[[], bool]) -> None:
    """Note from now on, once there is an optimizer, what makes new parameters."""
    import torch
    from torch.distributed import fsdp
    from torch.distributed.fsdp import FullyShardedDataParallel

    seen: set[Line] = set()

    def noting(how: str) -> Callable[..., None]:
        def notice(*args: Any, **options: Any) -> None:
            if not has_optimizer() or log.core.is_compiling():
                return
            place = log.place()
            if place not in seen:
                seen.add(place)
                log.note(EventKind.REPLACED, how=how)

        return notice

    before(torch.nn.Module, "register_parameter", noting("makes new ones"))
    before(torch.nn.Module, "to_empty", noting("to_empty"))
    before(FullyShardedDataParallel, "__init__", noting("FullyShardedDataParallel"))
    before(fsdp, "fully_shard", noting("fully_shard"))
