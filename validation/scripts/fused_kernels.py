"""Kernels that Megatron-LM brings as CUDA extensions or has torch fuse, each as one operator.

Eager torch would run them as several kernels. Here every one is a custom operator with a plain implementation, so that
the scripts train anywhere, and is one entry in a rehearsal: one pass over its tensors. Each is wrapped in an autograd
function that keeps what the extension keeps (and no more: activation memory depends on it).

    operator                     reads            writes               kept for backward
    causal_softmax               scores           probabilities        probabilities
    bias_gelu                    x, bias          y                    x, bias
    bias_dropout_add             x, bias, skip    y, mask              mask (one byte an element)
"""

import math
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

__all__ = ["bias_dropout_add", "bias_gelu", "causal_softmax"]


def _operator(function: Any) -> Any:
    """The operator `fused::<name>`, with the same plain implementation on the host and on a card."""
    operator = torch.library.custom_op(f"fused::{function.__name__}", function, mutates_args=(), device_types="cpu")
    operator.register_kernel("cuda")(function)
    return operator


def _overload(name: str) -> Any:
    """The operator, called straight below autograd: the functions that call it bring their own backward."""
    operator = getattr(torch.ops.fused, name).default

    def call(*args: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*args)

    return call


def scaled_causal_softmax(scores: Tensor, scale: float) -> Tensor:
    """Softmax over the last dim of `scores` [batch x heads, queries, keys] x scale, each query seeing no later key."""
    is_later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return torch.softmax((scores.float() * scale).masked_fill(is_later, -math.inf), dim=-1).to(scores.dtype)


def scaled_causal_softmax_backward(grad: Tensor, probs: Tensor, scale: float) -> Tensor:
    """scale x probs x (grad - sum of grad x probs)."""
    g, p = grad.float(), probs.float()
    return (scale * p * (g - (g * p).sum(dim=-1, keepdim=True))).to(grad.dtype)


def biased_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """gelu(x + bias), tanh approximation."""
    return F.gelu(x + bias, approximate="tanh")


def biased_gelu_backward(grad: Tensor, x: Tensor, bias: Tensor) -> Tensor:
    """Gradient of x + bias."""
    return torch.ops.aten.gelu_backward(grad, x + bias, approximate="tanh")


def biased_dropout_add(x: Tensor, bias: Tensor, residual: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """residual + dropout(x + bias), and which elements were kept."""
    mask = torch.rand(x.shape, device=x.device) >= p
    return residual + (x + bias) * mask * (1.0 / (1.0 - p)), mask


def masked_scale(grad: Tensor, mask: Tensor, scale: float) -> Tensor:
    """grad x mask x scale: dropout's gradient."""
    return grad * mask * scale


_operator(scaled_causal_softmax).register_fake(lambda scores, scale: torch.empty_like(scores))
_operator(scaled_causal_softmax_backward).register_fake(lambda grad, probs, scale: torch.empty_like(probs))
_operator(biased_gelu).register_fake(lambda x, bias: torch.empty_like(x))
_operator(biased_gelu_backward).register_fake(lambda grad, x, bias: torch.empty_like(x))
_operator(biased_dropout_add).register_fake(
    lambda x, bias, residual, p: (torch.empty_like(residual), torch.empty_like(residual, dtype=torch.bool))
)
_operator(masked_scale).register_fake(lambda grad, mask, scale: torch.empty_like(grad))

_softmax, _softmax_backward = _overload("scaled_causal_softmax"), _overload("scaled_causal_softmax_backward")
_gelu, _gelu_backward = _overload("biased_gelu"), _overload("biased_gelu_backward")
_dropout_add, _masked_scale = _overload("biased_dropout_add"), _overload("masked_scale")


class _CausalSoftmax(Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, scale: float) -> Tensor:
        probs = _softmax(scores, scale)
        ctx.scale = scale
        ctx.save_for_backward(probs)
        return probs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (probs,) = ctx.saved_tensors
        return _softmax_backward(grad, probs, ctx.scale), None


class _BiasGelu(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, bias)
        return _gelu(x, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        dx = _gelu_backward(grad, *ctx.saved_tensors)
        return dx, dx.sum(dim=(0, 1))


class _BiasDropoutAdd(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, residual: Tensor, p: float) -> Tensor:
        out, mask = _dropout_add(x, bias, residual, p)
        ctx.save_for_backward(mask)
        ctx.p = p
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        (mask,) = ctx.saved_tensors
        dx = _masked_scale(grad, mask, 1.0 / (1.0 - ctx.p))
        return dx, dx.sum(dim=(0, 1)), grad, None


def causal_softmax(scores: Tensor, scale: float) -> Tensor:
    """Softmax of causal attention over [batch, heads, queries, keys].

    The extension handles up to 2048 keys, and queries and batch x heads in fours; what it does not handle goes through
    ordinary operators, in fp32.
    """
    batch, heads, queries, keys = scores.shape
    if 16 < keys <= 2048 and queries % 4 == 0 and (batch * heads) % 4 == 0:
        return _CausalSoftmax.apply(scores.view(-1, queries, keys), scale).view(scores.shape)
    is_later = _later_keys(queries, keys, scores.device)
    return torch.softmax((scores.float() * scale).masked_fill_(is_later, -10000.0), dim=-1).to(scores.dtype)


@lru_cache(maxsize=8)
def _later_keys(queries: int, keys: int, device: torch.device) -> Tensor:
    """True where a key comes after the query; the same in every layer and step."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).triu(1)


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """gelu(x + bias) over [seq, batch, width]."""
    return _BiasGelu.apply(x, bias)


def bias_dropout_add(x: Tensor, bias: Tensor, residual: Tensor, p: float) -> Tensor:
    """residual + dropout(x + bias) over [seq, batch, hidden]."""
    return _BiasDropoutAdd.apply(x, bias, residual, p)
