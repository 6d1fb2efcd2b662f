"""Clipping: whose gradients are clipped, to what, and which optimizers hold them."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from sandtable.trace import EventKind
from sandtable.vgpu.observing.events import EventLog
from sandtable.vgpu.observing.parameters import ParameterWatcher

__all__ = ["follow_clipping", "is_flat_shard"]


def follow_clipping(log: EventLog, parameters: ParameterWatcher) -> None:
    """Note torch's own ways to clip from now on."""
    import torch

    is_inside = False

    def notice(how: str, tensors: Sequence[Any], limit: Any) -> None:
        parameters.note_clip()
        log.note(
            EventKind.CLIP,
            how=how,
            limit=float(limit) if isinstance(limit, int | float) and math.isfinite(limit) else 0.0,
            parameters=[parameters.index_of(tensor) for tensor in tensors],
            optimizers=parameters.holders_of(tensors),
            num_gradients=sum(tensor.grad is not None for tensor in tensors),
            num_flat_shards=sum(is_flat_shard(tensor) for tensor in tensors),
        )

    def watch(name: str, how: str) -> None:
        original = getattr(torch.nn.utils.clip_grad, name)

        @functools.wraps(original)
        def clip(given: Any, *args: Any, **options: Any) -> Any:
            nonlocal is_inside
            if is_inside or log.core.is_compiling() or torch.compiler.is_compiling():
                return original(given, *args, **options)
            tensors = [given] if isinstance(given, torch.Tensor) else list(given)  # (a generator is read here)
            limit = args[0] if args else options.get("max_norm", options.get("clip_value"))
            notice(how, tensors, limit)
            is_inside = True
            try:
                return original(tensors, *args, **options)
            finally:
                is_inside = False

        for owner in (torch.nn.utils, torch.nn.utils.clip_grad):
            for alias in (name, name.removeprefix("_")):
                if hasattr(owner, alias) and getattr(owner, alias) is original:
                    setattr(owner, alias, clip)

    for name, how in (("clip_grad_norm_", "norm"), ("clip_grad_value_", "value"), ("_clip_grads_with_norm_", "norm")):
        watch(name, how)


def is_flat_shard(tensor: Any) -> bool:
    """Return whether ranks hold parts of it that look like tensors of their own: FSDP1's flat parameters."""
    size = getattr(tensor, "_unpadded_unsharded_size", None)
    return size is not None and tensor.numel() < math.prod(size)
