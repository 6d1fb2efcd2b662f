"""Cross entropy as one kernel each way, like that of the flash-attention library.

Forward reads the bf16 logits once and keeps one number a token; backward reads them again and writes their gradient.
Nothing of the logits' size is ever held in fp32. On a CPU, plain operators stand in.
"""

import torch
from torch import Tensor


def fused_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean loss over all tokens: logits [tokens, vocabulary], targets [tokens]."""
    losses, _ = _forward(logits, targets)
    return losses.mean()


@torch.library.custom_op("validation::cross_entropy", mutates_args=(), device_types=("cpu", "cuda"))
def _forward(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    wide = logits.float()
    normalizer = wide.logsumexp(dim=-1)
    return normalizer - wide.gather(1, targets.unsqueeze(1)).squeeze(1), normalizer


@_forward.register_fake
def _(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    per_token = logits.new_empty(logits.shape[0], dtype=torch.float32)
    return per_token, torch.empty_like(per_token)


@torch.library.custom_op("validation::cross_entropy_backward", mutates_args=(), device_types=("cpu", "cuda"))
def _backward(grad: Tensor, logits: Tensor, normalizer: Tensor, targets: Tensor) -> Tensor:
    share = (logits.float() - normalizer.unsqueeze(1)).exp()
    share.scatter_add_(1, targets.unsqueeze(1), share.new_full((len(targets), 1), -1.0))
    return (share * grad.unsqueeze(1)).to(logits.dtype)


@_backward.register_fake
def _(grad: Tensor, logits: Tensor, normalizer: Tensor, targets: Tensor) -> Tensor:
    return torch.empty_like(logits)


def _save(
    ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]
) -> None:
    logits, targets = inputs
    ctx.save_for_backward(logits, output[1], targets)


def _differentiate(ctx: torch.autograd.function.FunctionCtx, grad: Tensor, _: Tensor) -> tuple[Tensor, None]:
    logits, normalizer, targets = ctx.saved_tensors  # type: ignore[attr-defined]
    return _backward(grad.contiguous(), logits, normalizer, targets), None


_forward.register_autograd(_differentiate, setup_context=_save)
