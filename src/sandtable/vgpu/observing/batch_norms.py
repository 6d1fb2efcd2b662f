"""Batch norms: those of a module that DDP wraps, and conversions to SyncBatchNorm that it does not have."""

from __future__ import annotations

from typing import Any

from sandtable.trace import EventKind
from sandtable.vgpu.observing.events import EventLog, after

__all__ = ["follow_batch_norms"]


_MOST_NAMES = 64


def follow_batch_norms(log: EventLog) -> None:
    """Note from now on how modules are converted to SyncBatchNorm, and what of that DDP gets."""
    from torch.nn import SyncBatchNorm
    from torch.nn.modules.batchnorm import _BatchNorm
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.weak import WeakTensorKeyDictionary

    converted = WeakTensorKeyDictionary()

    def on_converted(result: Any, *args: Any, **options: Any) -> None:
        is_new = isinstance(result, SyncBatchNorm) and result.weight is not None
        if is_new and result.weight not in converted:
            converted[result.weight] = log.place()

    def on_wrapped(result: None, wrapper: Any, module: Any, *args: Any, **options: Any) -> None:
        own = {
            name: part
            for name, part in module.named_modules()
            if isinstance(part, _BatchNorm) and not isinstance(part, SyncBatchNorm) and part.weight is not None
        }
        if own:
            log.note(EventKind.BATCH_NORMS, names=list(own)[:_MOST_NAMES])
        lost = [(name, converted[part.weight]) for name, part in own.items() if part.weight in converted]
        if lost:
            place = lost[0][1]
            log.note(EventKind.CONVERSION_LOST, names=[name for name, _ in lost], file=place.file, line=place.line)

    # (it calls itself for each layer, by the name of the class)
    after(SyncBatchNorm, "convert_sync_batchnorm", on_converted)
    SyncBatchNorm.convert_sync_batchnorm = staticmethod(SyncBatchNorm.convert_sync_batchnorm)  # type: ignore[method-assign]
    after(DistributedDataParallel, "__init__", on_wrapped)
