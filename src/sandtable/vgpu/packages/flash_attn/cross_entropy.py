"""`flash_attn.losses.cross_entropy` and `flash_attn.ops.triton.cross_entropy`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sandtable.vgpu.packages.fused.cross_entropy import fused_cross_entropy

__all__ = ["CrossEntropyLoss", "cross_entropy_loss"]


def cross_entropy_loss(
    logits: Tensor,
    labels: Tensor,
    precomputed_lse: Tensor | None = None,
    label_smoothing: float = 0.0,
    logit_scale: float = 1.0,
    lse_square_scale: float = 0.0,
    ignore_index: int = -100,
    inplace_backward: bool = False,
    process_group: Any = None,
) -> tuple[Tensor, Tensor]:
    """Return the losses and the penalties of the rows."""
    return fused_cross_entropy(
        "flash_attn::cross_entropy", logits, labels, inplace_backward=inplace_backward, group=process_group
    )


class CrossEntropyLoss(torch.nn.Module):
    """Cross entropy whose gradient may take the place of the logits."""

    def __init__(
        self,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        logit_scale: float = 1.0,
        lse_square_scale: float = 0.0,
        inplace_backward: bool = False,
        process_group: Any = None,
        return_z_loss: bool = False,
    ) -> None:
        super().__init__()
        self.ignore_index, self.reduction = ignore_index, reduction
        self.inplace_backward, self.process_group, self.return_z_loss = inplace_backward, process_group, return_z_loss

    def forward(self, input: Tensor, target: Tensor, precomputed_lse: Tensor | None = None) -> Any:  # noqa: A002
        """Return the loss, and with `return_z_loss` the penalty."""
        losses = cross_entropy_loss(
            input,
            target,
            ignore_index=self.ignore_index,
            inplace_backward=self.inplace_backward,
            process_group=self.process_group,
        )
        if self.reduction == "mean":
            num_labels = (target != self.ignore_index).sum()
            loss, penalty = [rows.sum() / num_labels for rows in losses]
        elif self.reduction == "sum":
            loss, penalty = [rows.sum() for rows in losses]
        else:
            loss, penalty = losses
        return (loss, penalty) if self.return_z_loss else loss
