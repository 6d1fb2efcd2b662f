"""Whole tensors: where a script asks for what is sharded over ranks whole."""

from __future__ import annotations

from typing import Any

from sandtable.trace import EventKind
from sandtable.vgpu.observing.events import EventLog, before

__all__ = ["follow_whole_tensors"]


def follow_whole_tensors(log: EventLog) -> None:
    """Note from now on where sharded tensors, or the weights of sharded modules, are put together."""
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.tensor import DTensor

    def on_gather(*args: Any, **options: Any) -> None:
        log.note(EventKind.GATHER)

    before(DTensor, "full_tensor", on_gather)
    before(FullyShardedDataParallel, "summon_full_params", on_gather)
    # A function of a class would get the object that it is called on.
    FullyShardedDataParallel.summon_full_params = staticmethod(FullyShardedDataParallel.summon_full_params)  # type: ignore[method-assign]
