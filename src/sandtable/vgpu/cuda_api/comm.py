"""Copies between the cards of one process: what ``torch.nn.DataParallel`` is made of."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

__all__ = ["names"]


def names(core: ModuleType) -> dict[str, Any]:
    """Return the names of ``torch._C`` that belong to copies between cards."""
    import torch

    def on_card(tensor: Any, device: int) -> Any:
        return tensor.to(torch.device("cuda", device) if device >= 0 else "cpu", non_blocking=True)

    def broadcast(tensor: Any, devices: Sequence[int]) -> list[Any]:
        return [on_card(tensor, device) for device in devices]

    def broadcast_coalesced(tensors: Sequence[Any], devices: Sequence[int], buffer_size: int) -> list[list[Any]]:
        return [[on_card(tensor, device) for tensor in tensors] for device in devices]

    def scatter(tensor: Any, devices: Sequence[int], sizes: Sequence[int] | None, dim: int, streams: Any) -> list[Any]:
        parts = tensor.split(list(sizes), dim) if sizes else tensor.chunk(len(devices), dim)
        return [on_card(part, device).contiguous() for part, device in zip(parts, devices, strict=False)]

    def gather(tensors: Sequence[Any], dim: int, device: int | None) -> Any:
        target = core.current_device() if device is None else device
        return torch.cat([on_card(tensor, target) for tensor in tensors], dim)

    def copy_all(parts: Sequence[Any], targets: Sequence[Any]) -> Sequence[Any]:
        for target, part in zip(targets, parts, strict=True):
            target.copy_(part, non_blocking=True)
        return targets

    return {
        "_broadcast": broadcast,
        "_broadcast_out": lambda tensor, targets: copy_all([tensor] * len(targets), targets),
        "_broadcast_coalesced": broadcast_coalesced,
        "_scatter": scatter,
        "_scatter_out": lambda tensor, targets, dim, streams: copy_all(
            tensor.split([target.shape[dim] for target in targets], dim), targets
        ),
        "_gather": gather,
        "_gather_out": lambda tensors, target, dim: copy_all([torch.cat([*tensors], dim)], [target])[0],
    }
