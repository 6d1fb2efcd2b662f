"""`flash_attn.bert_padding`: takes the padding out of a batch, and puts it back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["index_first_axis", "index_put_first_axis", "pad_input", "unpad_input"]


def unpad_input(hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None) -> Any:
    """Return the tokens that the masks select, end to end, with their places, bounds, longest and lengths."""
    mask = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = mask.sum(dim=-1, dtype=torch.int32)
    used_lengths = attention_mask.sum(dim=-1, dtype=torch.int32)
    places = torch.nonzero(mask.flatten(), as_tuple=False).flatten()
    longest = lengths.max().item()
    bounds = torch.nn.functional.pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))
    return index_first_axis(hidden_states.flatten(0, 1), places), places, bounds, longest, used_lengths


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Return the tokens at their places in a batch of padded sequences."""
    return index_put_first_axis(hidden_states, indices, batch * seqlen).view(batch, seqlen, *hidden_states.shape[1:])


def index_first_axis(x: Tensor, indices: Tensor) -> Tensor:
    """Return the rows at these places."""
    result: Tensor = _Take.apply(x, indices)  # type: ignore[no-untyped-call]
    return result


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """Return zeros with these rows at these places."""
    result: Tensor = _Put.apply(values, indices, first_axis_dim)  # type: ignore[no-untyped-call]
    return result


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, indices: Tensor) -> Tensor:
        ctx.save_for_backward(indices)
        ctx.num_rows = len(x)
        flat = x.reshape(len(x), -1)
        return torch.gather(flat, 0, indices.unsqueeze(1).expand(-1, flat.shape[1])).reshape(-1, *x.shape[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (indices,) = ctx.saved_tensors
        flat = grad.reshape(len(grad), -1)
        dx = flat.new_zeros((ctx.num_rows, flat.shape[1]))
        dx.scatter_(0, indices.unsqueeze(1).expand(-1, flat.shape[1]), flat)
        return dx.reshape(ctx.num_rows, *grad.shape[1:]), None


class _Put(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, indices: Tensor, num_rows: int) -> Tensor:
        ctx.save_for_backward(indices)
        out = values.new_zeros((num_rows, *values.shape[1:]))
        out[indices] = values
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (indices,) = ctx.saved_tensors
        return grad[indices], None, None
