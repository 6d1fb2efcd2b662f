"""Updates of many tensors in a few kernels: Adam, SGD, scaling and norms.

A kernel takes at most 110 tensors (fewer if more lists are read at once) and 320 chunks of 65,536 elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

import torch
from torch import Tensor

from sandtable.trace.work import Work
from sandtable.vgpu.packages.transformer_engine.kernels import launch

__all__ = [
    "multi_tensor_adam",
    "multi_tensor_adam_capturable",
    "multi_tensor_adam_capturable_master",
    "multi_tensor_adam_fp8",
    "multi_tensor_adam_param_remainder",
    "multi_tensor_compute_scale_and_scale_inv",
    "multi_tensor_compute_scale_inv_e8m0",
    "multi_tensor_l2norm",
    "multi_tensor_scale",
    "multi_tensor_scale_tensor",
    "multi_tensor_sgd",
    "multi_tensor_unscale_l2norm",
]

Lists = Sequence[Sequence[Tensor]]

_TENSORS_PER_KERNEL = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
_CHUNKS_PER_KERNEL = 320


def num_kernels(chunk_size: int, tensors: Sequence[Tensor], num_lists: int) -> int:
    """Return the launches for these tensors: a kernel is full by its tensors or by its chunks."""
    num_chunks = sum(ceil(tensor.numel() / chunk_size) for tensor in tensors)
    limit = _TENSORS_PER_KERNEL.get(num_lists, 24)
    return max(1, ceil(len(tensors) / limit), ceil(num_chunks / _CHUNKS_PER_KERNEL))


def _update(name: str, chunk_size: int, lists: Lists, *, read: Sequence[int], written: Sequence[int]) -> None:
    if not lists or not lists[0]:
        return
    launch(
        name,
        [tensor for index in read for tensor in lists[index]],
        [tensor for index in written for tensor in lists[index]],
        Work(family="elementwise", num_kernels=num_kernels(chunk_size, lists[0], len(lists))),
    )


def multi_tensor_adam(chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, *settings: Any) -> None:
    """Update (gradients, parameters, first moments, second moments[, parameters in float32])."""
    after_gradients = range(1, len(tensor_lists))
    _update("multi_tensor_adam", chunk_size, tensor_lists, read=range(len(tensor_lists)), written=after_gradients)


multi_tensor_adam_fp8 = multi_tensor_adam
multi_tensor_adam_capturable = multi_tensor_adam
multi_tensor_adam_capturable_master = multi_tensor_adam
multi_tensor_adam_param_remainder = multi_tensor_adam


def multi_tensor_sgd(chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, *settings: Any) -> None:
    """Update (gradients, parameters, momentum[, parameters in half precision])."""
    after_gradients = range(1, len(tensor_lists))
    _update("multi_tensor_sgd", chunk_size, tensor_lists, read=range(len(tensor_lists)), written=after_gradients)


def multi_tensor_scale(chunk_size: int, is_infinite: Tensor, tensor_lists: Lists, scale: Any) -> None:
    """Scale the first list into the second; nothing is found to be infinite."""
    _update("multi_tensor_scale", chunk_size, tensor_lists, read=(0,), written=(1,))


multi_tensor_scale_tensor = multi_tensor_scale


def multi_tensor_l2norm(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, per_tensor: bool | None = None
) -> tuple[Tensor, Tensor]:
    """Return the norm of all tensors, and of each if asked for."""
    tensors = tensor_lists[0]
    norm = torch.empty(1, dtype=torch.float32, device="cuda")
    norms = torch.empty(len(tensors) if per_tensor else 0, dtype=torch.float32, device="cuda")
    work = Work(family="reduction", num_kernels=num_kernels(chunk_size, tensors, 1) + 1)
    launch("multi_tensor_l2norm", tensors, [norm, norms], work)
    return norm, norms


def multi_tensor_unscale_l2norm(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, inv_scale: Tensor, per_tensor: bool | None = None
) -> tuple[Tensor, Tensor]:
    return multi_tensor_l2norm(chunk_size, noop_flag, tensor_lists, per_tensor)


def multi_tensor_compute_scale_and_scale_inv(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, *settings: Any
) -> None:
    """Turn largest values into scales and their inverses."""
    _update("multi_tensor_compute_scale", chunk_size, tensor_lists, read=(0,), written=(1, 2))


def multi_tensor_compute_scale_inv_e8m0(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, *settings: Any
) -> None:
    _update("multi_tensor_compute_scale_inv_e8m0", chunk_size, tensor_lists, read=(0,), written=(1,))
