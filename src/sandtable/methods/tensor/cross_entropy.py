"""Cross-entropy of logits that are split over the vocabulary, without gathering them.

Picture votes counted in districts: only the counts travel, no ballots. With z the logits of one token, m the largest of
them, t its target and e the label smoothing:

    loss = log(sum_j exp(z_j - m)) + m - (1 - e) * z_t - e * mean_j(z_j)

Each rank computes the maximum and the sums over its own logits. For b*s tokens, the ranks exchange b*s numbers
(all-reduce, maximum) and then 2 * b*s (all-reduce, sum: exponentials, target; 3 * b*s with smoothing), whatever the
vocabulary. The gradient, softmax(z) minus the target's distribution, needs no exchange.

Shoeybi et al. 2019 (arXiv:1909.08053), section 3.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from sandtable.errors import MethodError
from sandtable.methods.tensor.embedding import check_words
from sandtable.methods.tensor.group import TensorGroup

__all__ = ["cross_entropy"]

_REDUCTIONS = ("mean", "sum", "none")


def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    group: TensorGroup,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """Compute `F.cross_entropy` of this rank's logits [..., vocabulary / ranks] and targets [...] equal on all ranks.

    The loss is in float32, or in float64 if the logits are.
    """
    _check(logits, targets, label_smoothing, reduction)
    is_counted = targets != ignore_index
    check_words(targets[is_counted] if targets.device.type == "cpu" else targets, logits.size(-1) * group.size)
    losses: Tensor = _TokenLosses.apply(logits, targets, is_counted, label_smoothing, group)  # type: ignore[no-untyped-call]
    if reduction == "none":
        return losses
    # If all targets are ignored, the mean is 0 / 0, as in torch.
    return losses.sum() if reduction == "sum" else losses.sum() / is_counted.sum()


class _TokenLosses(Function):
    """The loss of each token, zero where it is not counted."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, is_counted: Tensor, smoothing: float, group: TensorGroup
    ) -> Tensor:
        num_words = logits.size(-1)
        shifted = logits.to(torch.promote_types(logits.dtype, torch.float32))
        shifted = shifted - group.all_reduce_max(shifted.amax(dim=-1)).unsqueeze(-1)
        word = targets - group.rank * num_words
        is_here = is_counted & (word >= 0) & (word < num_words)
        word = (word * is_here).unsqueeze(-1)
        exponentials = shifted.exp()
        # Not a product: excluded words have a logit of -inf, also on ranks that do not have the target.
        numbers = [exponentials.sum(dim=-1), shifted.gather(-1, word).squeeze(-1).masked_fill(~is_here, 0.0)]
        if smoothing:
            numbers.append(shifted.sum(dim=-1))
        total, target, *of_all = group.all_reduce(torch.stack(numbers))
        losses: Tensor = total.log() - (1 - smoothing) * target
        if smoothing:
            losses = losses - smoothing * of_all[0] / (num_words * group.size)
        ctx.save_for_backward(exponentials.div_(total.unsqueeze(-1)), word, is_here, is_counted)
        ctx.smoothing, ctx.vocabulary, ctx.dtype = smoothing, num_words * group.size, logits.dtype
        return losses.masked_fill(~is_counted, 0.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        softmax, word, is_here, is_counted = ctx.saved_tensors
        wanted = (1 - ctx.smoothing) * is_here.to(softmax.dtype)
        slopes = softmax - ctx.smoothing / ctx.vocabulary
        slopes.scatter_add_(-1, word, -wanted.unsqueeze(-1))
        slopes.mul_(gradient.masked_fill(~is_counted, 0.0).unsqueeze(-1))
        return slopes.to(ctx.dtype), None, None, None, None


def _check(logits: Tensor, targets: Tensor, label_smoothing: float, reduction: str) -> None:
    if logits.shape[:-1] != targets.shape:
        raise MethodError(
            f"targets must have the shape of the logits without the vocabulary, {list(logits.shape[:-1])}, but got "
            f"{list(targets.shape)}; the vocabulary is the last dim"
        )
    if not 0.0 <= label_smoothing <= 1.0:
        raise MethodError(f"label_smoothing must be from 0 to 1, but got {label_smoothing}; try 0.1")
    if reduction not in _REDUCTIONS:
        raise MethodError(f'reduction must be "mean", "sum" or "none", but got {reduction!r}; try "mean"')
