"""Attention, rotary embedding and context parallelism."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module

from sandtable.vgpu.packages.transformer_engine import layers as kernels
from sandtable.vgpu.packages.transformer_engine.attention import fused_attn_bwd, fused_attn_fwd

__all__ = ["DotProductAttention", "_SplitAlongDim", "apply_rotary_pos_emb"]


class _Attention(torch.autograd.Function):
    """softmax(Q·Kᵀ)·V of whole sequences, or of packed ones ("thd")."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: str, mask: str, dropout: float) -> Tensor:
        ctx.layout, ctx.mask, ctx.dropout = layout, mask, dropout
        output, saved = fused_attn_fwd(
            max_seqlen_q=_length(query, layout),
            max_seqlen_kv=_length(key, layout),
            q=query,
            k=key,
            v=value,
            fake_dtype=query.dtype,
            qkv_layout=layout_of(layout),
            o_format=layout,
            attn_mask_type=mask,
            dropout=dropout,
        )
        ctx.save_for_backward(query, key, value, output, *saved)
        result: Tensor = output
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, *saved = ctx.saved_tensors
        results = fused_attn_bwd(
            max_seqlen_q=_length(query, ctx.layout),
            max_seqlen_kv=_length(key, ctx.layout),
            q=query,
            k=key,
            v=value,
            o=output,
            d_o=gradients[0].contiguous(),
            fake_dtype=query.dtype,
            aux_ctx_tensors=saved,
            qkv_layout=layout_of(ctx.layout),
            dqkv_layout=layout_of(ctx.layout),
            o_format=ctx.layout,
            do_format=ctx.layout,
            attn_mask_type=ctx.mask,
            dropout=ctx.dropout,
        )
        return (*results[:3], None, None, None)


def layout_of(order: str) -> str:
    """Return the layout of three separate tensors in this order of dims."""
    return "_".join([order] * 3)


def _length(tensor: Tensor, layout: str) -> int:
    return tensor.shape[layout.index("s") if "s" in layout else 0]


class _RingExchange(torch.autograd.Function):
    """Send keys and values to the next rank of a ring; gradients go the other way."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _exchange(tensor, group, forward=True)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _exchange(gradients[0].contiguous(), ctx.group, forward=False), None


def _exchange(tensor: Tensor, group: Any, *, forward: bool) -> Tensor:
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    step = 1 if forward else -1
    received = torch.empty_like(tensor)
    requests = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, tensor.contiguous(), group=group, group_peer=(rank + step) % size),
            dist.P2POp(dist.irecv, received, group=group, group_peer=(rank - step) % size),
        ]
    )
    for request in requests:
        request.wait()
    return received


class DotProductAttention(Module):
    """Attention; with a group for context parallelism, keys and values go around a ring beside it."""

    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: Any,
        num_gqa_groups: int | None = None,
        attention_dropout: float = 0.0,
        qkv_format: str = "sbhd",
        attn_mask_type: str = "causal",
        tp_size: int = 1,
        cp_group: Any = None,
        cp_stream: Any = None,
        cp_comm_type: str = "p2p",
        **options: Any,
    ) -> None:
        super().__init__()
        self.attention_dropout = attention_dropout
        self.qkv_format, self.attn_mask_type = qkv_format, attn_mask_type
        self.set_context_parallel_group(cp_group, None, cp_stream, cp_comm_type)

    def set_context_parallel_group(self, cp_group: Any, ranks: Any, cp_stream: Any, cp_comm_type: str = "p2p") -> None:
        """Cut sequences among the ranks of a group."""
        self.cp_group, self.cp_stream = cp_group, cp_stream
        size = 1 if cp_group is None else dist.get_world_size(cp_group)
        if size > 1 and cp_comm_type != "p2p":
            raise RuntimeError(
                f"context parallelism by {cp_comm_type} must have Transformer Engine's own Python, but it is not "
                "installed; pip install --no-deps transformer_engine onnxscript, or use p2p"
            )

    def forward(
        self,
        query_layer: Tensor,
        key_layer: Tensor,
        value_layer: Tensor,
        attention_mask: Tensor | None = None,
        qkv_format: str | None = None,
        attn_mask_type: str | None = None,
        **options: Any,
    ) -> Tensor:
        layout = qkv_format or self.qkv_format
        mask = attn_mask_type or self.attn_mask_type
        dropout = self.attention_dropout if self.training else 0.0
        parts = query_layer, key_layer, value_layer
        if self.cp_group is not None and dist.get_world_size(self.cp_group) > 1:
            output = self._around_ring(*parts, layout, mask, dropout)
        else:
            output = _Attention.apply(*parts, layout, mask, dropout)  # type: ignore[no-untyped-call]
        return output.reshape(*output.shape[:-2], -1)

    def _around_ring(self, query: Tensor, key: Tensor, value: Tensor, layout: str, mask: str, dropout: float) -> Tensor:
        """Attend to one rank's keys after the other; the next ones arrive meanwhile.

        Each rank has two chunks of the sequence, the i-th and the i-th last, so that a causal mask leaves all ranks the
        same work: the square of its own, and half of each other one.
        """
        main = torch.cuda.current_stream()
        stream = self.cp_stream or main
        pair = torch.stack([key, value])
        dim = layout.index("s") if "s" in layout else 0
        half = query.shape[dim] // 2
        result: Tensor | None = None
        for step in range(dist.get_world_size(self.cp_group)):
            coming = pair
            if step < dist.get_world_size(self.cp_group) - 1:
                stream.wait_stream(main)
                with torch.cuda.stream(stream):
                    coming = _RingExchange.apply(pair, self.cp_group)  # type: ignore[no-untyped-call]
            is_other = step > 0 and "causal" in mask
            keys, values = (part.narrow(dim, 0, half) if is_other else part for part in pair.unbind(0))
            output = _Attention.apply(query, keys, values, layout, "no_mask" if is_other else mask, dropout)  # type: ignore[no-untyped-call]
            result = output if result is None else torch.add(result, output)
            main.wait_stream(stream)
            pair = coming
        assert result is not None
        return result


class _SplitAlongDim(torch.autograd.Function):
    """Split a tensor into views; their gradients, if they lie side by side, need no copy."""

    @staticmethod
    def forward(ctx: Any, mixed: Tensor, split_dim: int, sizes: Any, squeeze: bool = False) -> tuple[Tensor, ...]:
        ctx.dim = split_dim
        parts = torch.split(mixed, sizes, dim=split_dim)
        return tuple(part.squeeze(split_dim) for part in parts) if squeeze else tuple(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return torch.cat(gradients, dim=ctx.dim), None, None, None


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, freqs: Tensor) -> Tensor:
        ctx.save_for_backward(freqs)
        return kernels.fused_rope_forward(tensor, freqs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return kernels.fused_rope_backward(gradients[0], *ctx.saved_tensors), None


def apply_rotary_pos_emb(t: Tensor, freqs: Tensor, *args: Any, **options: Any) -> Tensor:
    """Turn pairs of features by angles that grow with the position, in one kernel."""
    output: Tensor = _Rotation.apply(t, freqs)  # type: ignore[no-untyped-call]
    return output
