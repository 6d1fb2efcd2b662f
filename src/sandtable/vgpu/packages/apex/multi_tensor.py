"""`amp_C`: kernels that go through lists of tensors, many tensors per launch.

A launch takes at most 320 blocks, one per chunk of a tensor, and as many tensors as fit into its arguments
(csrc/multi_tensor_apply.cuh).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sandtable.trace.work import Work
from sandtable.vgpu.packages.kernels import record_kernel

__all__ = [
    "multi_tensor_adagrad",
    "multi_tensor_adam",
    "multi_tensor_adam_capturable",
    "multi_tensor_adam_capturable_master",
    "multi_tensor_axpby",
    "multi_tensor_l2norm",
    "multi_tensor_l2norm_mp",
    "multi_tensor_l2norm_scale",
    "multi_tensor_lamb",
    "multi_tensor_lamb_mp",
    "multi_tensor_lamb_stage1_cuda",
    "multi_tensor_lamb_stage2_cuda",
    "multi_tensor_novograd",
    "multi_tensor_scale",
    "multi_tensor_sgd",
    "multi_tensor_unscale_l2norm",
    "update_scale_hysteresis",
]

_MAX_BLOCKS = 320
_MAX_TENSORS = (110, 64, 48, 36, 30)
"""By the number of lists."""

Lists = Sequence[Sequence[Tensor]]


def _updates(name: str, written: Sequence[int], *, num_passes: int = 1) -> Callable[..., None]:
    """Return a function that reads all lists and writes some, in so many passes over the tensors."""

    def update(chunk_size: int, noop_flag: Tensor, lists: Lists, *settings: Any) -> None:
        outputs = [tensor for place in written if place < len(lists) for tensor in lists[place]]
        _launch(name, chunk_size, lists, outputs, num_passes=num_passes)

    return update


def _norms(name: str, *, num_written: int = 0) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return a function that returns the norm of all tensors, and of each if it is told to."""

    def norm(chunk_size: int, noop_flag: Tensor, lists: Lists, *settings: Any) -> tuple[Tensor, Tensor]:
        per_tensor = any(setting is True for setting in settings)
        first = lists[0][0]
        total = first.new_empty(1, dtype=torch.float32)
        each = first.new_empty(len(lists[0]) if per_tensor else 0, dtype=torch.float32)
        written = [tensor for tensors in lists[len(lists) - num_written :] for tensor in tensors] if num_written else []
        _launch(name, chunk_size, lists, [total, *([each] if per_tensor else []), *written], family="reduction", more=1)
        return total, each

    return norm


def _launch(
    name: str,
    chunk_size: int,
    lists: Lists,
    outputs: list[Tensor],
    *,
    num_passes: int = 1,
    family: Any = "elementwise",
    more: int = 0,
) -> None:
    num_chunks = sum(-(-tensor.numel() // chunk_size) for tensor in lists[0])
    most = _MAX_TENSORS[min(len(lists), len(_MAX_TENSORS)) - 1]
    num_kernels = max(-(-num_chunks // _MAX_BLOCKS), -(-len(lists[0]) // most))
    inputs = [tensor for tensors in lists for tensor in tensors]
    read = num_passes * sum(tensor.numel() * tensor.element_size() for tensor in inputs) if num_passes > 1 else None
    work = Work(family=family, num_kernels=num_kernels * num_passes + more, bytes_read=read)
    record_kernel(f"apex::{name}", inputs=inputs, outputs=outputs, work=work)


multi_tensor_scale = _updates("multi_tensor_scale", [1])
multi_tensor_axpby = _updates("multi_tensor_axpby", [2])
multi_tensor_sgd = _updates("multi_tensor_sgd", [1, 2, 3])
multi_tensor_adam = _updates("multi_tensor_adam", [1, 2, 3])
multi_tensor_adam_capturable = _updates("multi_tensor_adam_capturable", [1, 2, 3])
multi_tensor_adam_capturable_master = _updates("multi_tensor_adam_capturable_master", [1, 2, 3, 4])
multi_tensor_adagrad = _updates("multi_tensor_adagrad", [1, 2])
multi_tensor_novograd = _updates("multi_tensor_novograd", [1, 2])
# Norms of parameters, the update, norms of the update, and its application.
multi_tensor_lamb = _updates("multi_tensor_lamb", [0, 1, 2, 3], num_passes=2)
multi_tensor_lamb_mp = _updates("multi_tensor_lamb_mp", [0, 1, 2, 3, 4], num_passes=2)
multi_tensor_lamb_stage1_cuda = _updates("multi_tensor_lamb_stage1", [2, 3, 4])
multi_tensor_lamb_stage2_cuda = _updates("multi_tensor_lamb_stage2", [0])
multi_tensor_l2norm = _norms("multi_tensor_l2norm")
multi_tensor_l2norm_mp = _norms("multi_tensor_l2norm_mp")
multi_tensor_unscale_l2norm = _norms("multi_tensor_unscale_l2norm")
multi_tensor_l2norm_scale = _norms("multi_tensor_l2norm_scale", num_written=1)


def update_scale_hysteresis(scale: Tensor, growth: Tensor, hysteresis: Tensor, found_inf: Tensor, *_: Any) -> Tensor:
    """Adjust the scale of a loss, on the card: one thread."""
    tensors = [scale, growth, hysteresis, found_inf]
    record_kernel("apex::update_scale_hysteresis", inputs=tensors, outputs=tensors[:3], work=Work())
    return scale
