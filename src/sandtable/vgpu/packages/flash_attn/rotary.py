"""`flash_attn.layers.rotary`: rotary embeddings, whose kernels are Triton's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sandtable.vgpu.packages.fused.rotary import fused_rotary

__all__ = [
    "RotaryEmbedding",
    "apply_rotary",
    "apply_rotary_emb",
    "apply_rotary_emb_func",
    "apply_rotary_emb_kv_",
    "apply_rotary_emb_qkv_",
]

_NAME = "flash_attn::rotary"


def apply_rotary_emb(
    x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, inplace: bool = False, *_: Any, **__: Any
) -> Tensor:
    """Rotate queries or keys: (batch, length, heads, size) or (total, heads, size)."""
    return fused_rotary(_NAME, x, angles=(cos, sin), inplace=inplace)[0]


apply_rotary_emb_func = apply_rotary_emb


def apply_rotary(
    x: Tensor, cos: Tensor, sin: Tensor, *_: Any, interleaved: bool = False, inplace: bool = False, **__: Any
) -> Tensor:
    """Rotate, without gradients."""
    return apply_rotary_emb(x.detach(), cos, sin, inplace=inplace)


def apply_rotary_emb_qkv_(
    qkv: Tensor, cos: Tensor, sin: Tensor, *_: Any, num_heads_q: int | None = None, **__: Any
) -> Tensor:
    """Rotate the queries and keys of a packed tensor in place: (batch, length, 3, heads, size), or with all heads of
    queries, keys and values in one dimension."""
    is_flat = num_heads_q is not None and qkv.dim() == 4
    num_rotated = (qkv.shape[2] + num_heads_q) // 2 if is_flat and num_heads_q is not None else 2
    result: Tensor = _RotatePacked.apply(qkv, cos, sin, num_rotated)  # type: ignore[no-untyped-call]
    return result


def apply_rotary_emb_kv_(kv: Tensor, cos: Tensor, sin: Tensor, *_: Any, **__: Any) -> Tensor:
    """Rotate the keys of a packed tensor in place."""
    result: Tensor = _RotatePacked.apply(kv, cos, sin, 1)  # type: ignore[no-untyped-call]
    return result


class _RotatePacked(torch.autograd.Function):
    """Rotates the first tensors of a packed one, and its gradient back, both in place."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor, cos: Tensor, sin: Tensor, num_rotated: int) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.num_rotated = num_rotated
        ctx.mark_dirty(packed)
        fused_rotary(_NAME, packed.detach()[:, :, :num_rotated], angles=(cos, sin), inplace=True)
        return packed

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        fused_rotary(f"{_NAME}_backward", grad[:, :, : ctx.num_rotated], angles=tuple(ctx.saved_tensors), inplace=True)
        return grad, None, None, None


class RotaryEmbedding(torch.nn.Module):
    """Keeps the angles and rotates packed queries and keys."""

    def __init__(
        self,
        dim: int,
        base: float = 10000.0,
        interleaved: bool = False,
        scale_base: float | None = None,
        pos_idx_in_fp32: bool = True,
        device: Any = None,
    ) -> None:
        super().__init__()
        self.dim, self.base, self.interleaved = dim, float(base), interleaved
        self.scale_base, self.pos_idx_in_fp32 = scale_base, pos_idx_in_fp32
        self.register_buffer("inv_freq", self._compute_inv_freq(device), persistent=False)
        self.register_buffer("scale", None, persistent=False)
        # Subclasses of users make the angles anew, so these are named as in the package.
        self._seq_len_cached = 0
        self._cos_cached: Tensor | None = None
        self._sin_cached: Tensor | None = None

    def _compute_inv_freq(self, device: Any) -> Tensor:
        return 1.0 / (self.base ** (torch.arange(0, self.dim, 2, device=device, dtype=torch.float32) / self.dim))

    def _update_cos_sin_cache(self, seqlen: int, device: Any = None, dtype: torch.dtype | None = None) -> None:
        cached = self._cos_cached
        if cached is not None and seqlen <= self._seq_len_cached and cached.device == device and cached.dtype == dtype:
            return
        self._seq_len_cached = seqlen
        angles = torch.outer(torch.arange(seqlen, device=device, dtype=torch.float32), self._compute_inv_freq(device))
        self._cos_cached, self._sin_cached = torch.cos(angles).to(dtype), torch.sin(angles).to(dtype)

    def forward(
        self,
        qkv: Tensor,
        kv: Tensor | None = None,
        seqlen_offset: Any = 0,
        max_seqlen: int | None = None,
        num_heads_q: int | None = None,
    ) -> Any:
        """Rotate packed queries, keys and values, or queries and packed keys and values."""
        length = qkv.shape[1] + (seqlen_offset if isinstance(seqlen_offset, int) else 0)
        self._update_cos_sin_cache(max_seqlen or length, device=qkv.device, dtype=qkv.dtype)
        cos, sin = self._cos_cached, self._sin_cached
        assert cos is not None
        assert sin is not None
        if kv is None:
            return apply_rotary_emb_qkv_(qkv, cos, sin, num_heads_q=num_heads_q)
        return apply_rotary_emb_func(qkv, cos, sin, inplace=True), apply_rotary_emb_kv_(kv, cos, sin)
