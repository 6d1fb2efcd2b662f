"""Layers of apex that are torch's with fused kernels, and parts of it that later versions removed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sandtable.vgpu.packages.apex import multi_tensor
from sandtable.vgpu.packages.apex.optimizers import multi_tensor_applier
from sandtable.vgpu.packages.fused.cross_entropy import fused_cross_entropy

__all__ = [
    "DistributedDataParallel",
    "FusedDense",
    "FusedDenseGeluDense",
    "SoftmaxCrossEntropyLoss",
    "SyncBatchNorm",
    "clip_grad_norm_",
    "convert_syncbn_model",
    "initialize",
    "master_params",
    "scale_loss",
]

SyncBatchNorm = torch.nn.SyncBatchNorm
convert_syncbn_model = torch.nn.SyncBatchNorm.convert_sync_batchnorm
DistributedDataParallel = torch.nn.parallel.DistributedDataParallel
FusedDense = torch.nn.Linear


class FusedDenseGeluDense(torch.nn.Module):
    """Two products with GELU between them."""

    def __init__(self, in_features: int, intermediate_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.first = torch.nn.Linear(in_features, intermediate_features, bias)
        self.second = torch.nn.Linear(intermediate_features, out_features, bias)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layers."""
        result: Tensor = self.second(torch.nn.functional.gelu(self.first(x)))
        return result


class SoftmaxCrossEntropyLoss:
    """`apex.contrib.xentropy`: losses per row in one kernel."""

    @staticmethod
    def apply(logits: Tensor, labels: Tensor, *_: Any) -> Tensor:
        """Return the losses."""
        return fused_cross_entropy("apex::xentropy", logits, labels, inplace_backward=True)[0]


def clip_grad_norm_(
    parameters: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> Tensor:
    """Clip by the norm of all gradients: `apex.contrib.clip_grad`."""
    parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    flag = torch.zeros(1, dtype=torch.int32, device="cuda")
    norm: Tensor = multi_tensor_applier(multi_tensor.multi_tensor_l2norm, flag, [grads], False)[0]
    multi_tensor_applier(multi_tensor.multi_tensor_scale, flag, [grads, grads], 1.0)
    return norm.squeeze()


def initialize(*_: Any, **__: Any) -> Any:
    """Reject `apex.amp`, which torch.amp replaced."""
    raise NotImplementedError("apex.amp is not rehearsed, as newer versions of apex do not have it; use torch.amp")


master_params = scale_loss = initialize
