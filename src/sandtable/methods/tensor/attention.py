"""ParallelMultiheadAttention: an `nn.MultiheadAttention` of which each rank has some of the heads.

Heads do not see each other, so a rank projects, attends and projects back with its own heads, and one sum over the
ranks gives the output. It is called as torch's is, and keeps its parameters under the same names.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sandtable.errors import MethodError
from sandtable.methods.tensor.group import TensorGroup
from sandtable.methods.tensor.layout import ShardLayout
from sandtable.methods.tensor.linear import RowParallelLinear
from sandtable.methods.tensor.region import Region

__all__ = ["ParallelMultiheadAttention"]


class ParallelMultiheadAttention(nn.Module):
    """This rank's heads; the output is replicated. Attention weights are those of this rank's heads, or their mean."""

    in_proj_weight: Tensor
    in_proj_bias: Tensor | None

    def __init__(self, attention: nn.MultiheadAttention, region: Region, *, name: str = "attention") -> None:
        super().__init__()
        _check(attention, name)
        group = region.group
        group.check_divides(attention.num_heads, f"the heads of {name}")
        self.batch_first = attention.batch_first
        self.dropout = attention.dropout
        self.head_dim = attention.head_dim
        self.num_heads = attention.num_heads // group.size
        # Disables the shortcut of torch's encoder layers, which takes the weights and never calls this module.
        self._qkv_same_embed_dim = False
        self.layouts = {"in_proj_weight": ShardLayout(dim=0, parts=3), "in_proj_bias": ShardLayout(dim=0, parts=3)}
        for key, layout in self.layouts.items():
            whole = getattr(attention, key)
            if whole is None:
                self.register_parameter(key, None)
            else:
                share = layout.take(whole.detach(), group, f"the rows of {name}.{key}")
                self.register_parameter(key, nn.Parameter(share, requires_grad=whole.requires_grad))
        self.out_proj = RowParallelLinear(attention.out_proj, group, leave=region.leave, name=f"{name}.out_proj")
        self._region = region

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend as `nn.MultiheadAttention` does, on batches. The hint `is_causal` needs `attn_mask`, as there."""
        if is_causal and attn_mask is None:
            raise MethodError(
                "is_causal is a hint about attn_mask and must come with it, but attn_mask is None; "
                "give nn.Transformer.generate_square_subsequent_mask(length)"
            )
        q, k, v = self._project(query, key, value)
        mask = _join_masks(attn_mask, key_padding_mask, q.dtype, self._region.group, self.num_heads)
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = q @ k.transpose(-1, -2) / self.head_dim**0.5
            weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
            weights = F.dropout(weights, dropout)
            heads = weights @ v
            weights = weights.mean(dim=1) if average_attn_weights else weights
        else:
            heads = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        joined = heads.transpose(1, 2).flatten(-2)
        self._region.end()
        return self.out_proj(joined if self.batch_first else joined.transpose(0, 1)), weights

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Return queries, keys and values, each [batch, heads, tokens, head_dim]."""
        if query.dim() != 3:
            raise MethodError(
                f"the input of split attention must have 3 dims, but got {query.dim()}; call unsqueeze on it"
            )
        projected = []
        weights = self.in_proj_weight.chunk(3)
        biases: Any = [None] * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        for outside, weight, bias in zip((query, key, value), weights, biases, strict=True):
            rows = F.linear(self._region.enter(outside), weight, bias)
            heads = torch.unflatten(rows, -1, (self.num_heads, self.head_dim))
            projected.append(heads.transpose(1, 2) if self.batch_first else heads.permute(1, 2, 0, 3))
        return projected


def _join_masks(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, dtype: torch.dtype, group: TensorGroup, num_heads: int
) -> Tensor | None:
    """Return one mask to add to the scores [batch, heads of this rank, queries, keys]."""
    masks = []
    if attn_mask is not None:
        mask = _additive(attn_mask, dtype)
        if mask.dim() == 3:  # [batch * heads of all ranks, queries, keys]
            mask = group.share(torch.unflatten(mask, 0, (-1, num_heads * group.size)), dim=1)
        masks.append(mask)
    if key_padding_mask is not None:
        masks.append(_additive(key_padding_mask, dtype)[:, None, None, :])
    return sum(masks[1:], masks[0]) if masks else None


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -torch.inf)


def _check(attention: nn.MultiheadAttention, name: str) -> None:
    unusual = {
        "kdim": attention.kdim != attention.embed_dim,
        "vdim": attention.vdim != attention.embed_dim,
        "add_bias_kv": attention.bias_k is not None,
        "add_zero_attn": attention.add_zero_attn,
    }
    for setting, is_set in unusual.items():
        if is_set:
            raise MethodError(
                f"split attention must have keys and values like its queries, but {name} sets {setting}; "
                "leave it out of the plan"
            )
