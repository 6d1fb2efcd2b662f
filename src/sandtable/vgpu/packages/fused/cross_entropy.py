"""Cross entropy in one kernel: reads the logits once and saves one float32 per row; another writes the gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sandtable.trace.work import Work
from sandtable.vgpu.packages.kernels import record_kernel

__all__ = ["fused_cross_entropy"]


def fused_cross_entropy(
    name: str, logits: Tensor, labels: Tensor, *, inplace_backward: bool = False, group: Any = None
) -> tuple[Tensor, Tensor]:
    """Return a loss and a penalty per row; with `group` the logits are this rank's share of the vocabulary."""
    result: tuple[Tensor, Tensor] = _CrossEntropy.apply(name, inplace_backward, group, logits, labels)  # type: ignore[no-untyped-call]
    return result


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, name: str, inplace_backward: bool, group: Any, logits: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        losses, sums, penalties = [logits.new_empty(len(logits), dtype=torch.float32) for _ in range(3)]
        outputs = [losses, sums, penalties]
        record_kernel(name, inputs=[logits, labels], outputs=outputs, work=Work(family="normalisation"))
        if group is not None and torch.distributed.get_world_size(group) > 1:
            gathered = sums.new_empty((torch.distributed.get_world_size(group), len(sums)))
            torch.distributed.all_gather_into_tensor(gathered, sums, group=group)
            torch.distributed.all_reduce(losses, group=group)
            sums = torch.logsumexp(gathered, dim=0)
            losses += sums
        ctx.save_for_backward(logits, sums, labels)
        ctx.name, ctx.inplace_backward = name, inplace_backward
        ctx.mark_non_differentiable(penalties)
        return losses, penalties

    @staticmethod
    def backward(ctx: Any, dlosses: Tensor, _: Any) -> Any:
        logits, sums, labels = ctx.saved_tensors
        dlogits = logits if ctx.inplace_backward else torch.empty_like(logits)
        read = [dlosses, logits, sums, labels]
        record_kernel(f"{ctx.name}_backward", inputs=read, outputs=[dlogits], work=Work())
        return None, None, None, dlogits, None
