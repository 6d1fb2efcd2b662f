"""`xformers.ops.fmha.attn_bias`: masks as objects, so that no kernel has to read one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "AttentionBias",
    "BlockDiagonalCausalFromBottomRightMask",
    "BlockDiagonalCausalLocalAttentionFromBottomRightMask",
    "BlockDiagonalCausalLocalAttentionMask",
    "BlockDiagonalCausalMask",
    "BlockDiagonalCausalWithOffsetPaddedKeysMask",
    "BlockDiagonalMask",
    "BlockDiagonalPaddedKeysMask",
    "LocalAttentionFromBottomRightMask",
    "LowerTriangularFromBottomRightLocalAttentionMask",
    "LowerTriangularFromBottomRightMask",
    "LowerTriangularMask",
    "LowerTriangularMaskWithTensorBias",
]


class AttentionBias:
    """What attention adds to its scores. `is_causal` and `window` are how kernels are told."""

    is_causal = False
    window = (-1, -1)

    def to(self, device: Any) -> Any:
        """Return the same on another device."""
        return self

    def materialize(self, shape: Sequence[int], dtype: Any = torch.float32, device: Any = "cpu") -> Tensor:
        """Return the mask as a tensor; of blocks, only the triangle."""
        mask = torch.full(tuple(shape), float("-inf") if self.is_causal else 0.0, dtype=dtype, device=device)
        return mask.triu_(1) if self.is_causal else mask


class LowerTriangularMask(AttentionBias):
    """Each position attends to itself and to earlier ones."""

    is_causal = True

    def __init__(self, *, device: Any = None) -> None: ...

    def make_local_attention(self, window_size: int) -> Any:
        """Return a mask that ends a window earlier."""
        return LowerTriangularFromBottomRightLocalAttentionMask(_window_size=window_size)

    def add_bias(self, bias: Tensor) -> Any:
        """Return a mask with a bias as well."""
        return LowerTriangularMaskWithTensorBias(bias)


class LowerTriangularFromBottomRightMask(LowerTriangularMask):
    """The last query attends to the last key."""


class LowerTriangularMaskWithTensorBias(LowerTriangularMask):
    """Causal, with a tensor to add."""

    def __init__(self, bias: Tensor) -> None:
        self._subtensor = bias


@dataclass
class LocalAttentionFromBottomRightMask(AttentionBias):
    """Each position attends to a window around it."""

    window_left: int
    window_right: int

    @property
    def window(self) -> tuple[int, int]:  # type: ignore[override]
        return self.window_left, self.window_right


@dataclass
class LowerTriangularFromBottomRightLocalAttentionMask(LowerTriangularFromBottomRightMask):
    """Causal, within a window."""

    _window_size: int

    @property
    def window(self) -> tuple[int, int]:  # type: ignore[override]
        return self._window_size - 1, 0


@dataclass
class _Lengths:
    """Sequences laid end to end: where each starts, on the card and on the host."""

    seqstart: Tensor
    max_seqlen: int
    min_seqlen: int
    seqstart_py: list[int]
    seqlen: Tensor | None = None
    padding: int = 0

    @classmethod
    def of(cls, lengths: Iterable[int], device: Any = None, padding: int = 0) -> _Lengths:
        lengths = list(lengths)
        starts = [0, *accumulate([padding] * len(lengths) if padding else lengths)]
        device = device if device is not None else "cuda" if torch.cuda.is_available() else "cpu"
        used = torch.tensor(lengths, dtype=torch.int32, device=device) if padding else None
        start = torch.tensor(starts, dtype=torch.int32, device=device)
        return cls(start, max(lengths), min(lengths), starts, used, padding)

    def to(self, device: Any) -> _Lengths:
        used = None if self.seqlen is None else self.seqlen.to(device)
        return replace(self, seqstart=self.seqstart.to(device), seqlen=used)

    def split(self, x: Tensor) -> list[Tensor]:
        sizes = [end - start for start, end in zip(self.seqstart_py, self.seqstart_py[1:], strict=False)]
        return list(torch.split(x, sizes, dim=1))


@dataclass
class BlockDiagonalMask(AttentionBias):
    """Each sequence attends to its own keys."""

    q_seqinfo: Any
    k_seqinfo: Any
    _batch_sizes: Sequence[int] | None = None

    @classmethod
    def from_seqlens(
        cls, q_seqlen: Sequence[int], kv_seqlen: Sequence[int] | None = None, *, device: Any = None, **options: Any
    ) -> Any:
        """Return the mask of sequences of these lengths."""
        queries = _Lengths.of(q_seqlen, device)
        keys = queries if kv_seqlen is None or list(kv_seqlen) == list(q_seqlen) else _Lengths.of(kv_seqlen, device)
        return cls(q_seqinfo=queries, k_seqinfo=keys, **options)

    @classmethod
    def from_tensor_list(cls, tensors: Sequence[Tensor]) -> Any:
        """Return the mask of these tensors, and the tensors laid end to end."""
        lengths = [x.shape[1] for x in tensors for _ in range(x.shape[0])]
        mask = cls.from_seqlens(lengths, device=tensors[0].device)
        mask._batch_sizes = [x.shape[0] for x in tensors]
        return mask, torch.cat([x.reshape(1, -1, *x.shape[2:]) for x in tensors], dim=1)

    def split(self, x: Tensor) -> list[Tensor]:
        """Return the sequences of a tensor in which they lie end to end."""
        parts: list[Tensor] = self.q_seqinfo.split(x)
        return parts

    split_queries = split

    def to(self, device: Any) -> Any:
        """Return the same on another device."""
        return replace(self, q_seqinfo=self.q_seqinfo.to(device), k_seqinfo=self.k_seqinfo.to(device))

    def make_causal(self) -> Any:
        """Return a mask that is causal within each sequence."""
        return _as(BlockDiagonalCausalMask, self)

    def make_causal_from_bottomright(self) -> Any:
        """Return a mask that is causal from the last key on."""
        return _as(BlockDiagonalCausalFromBottomRightMask, self)

    def make_local_attention(self, window_size: int) -> Any:
        """Return a mask that is causal within a window."""
        return _as(BlockDiagonalCausalLocalAttentionMask, self, _window_size=window_size)

    def make_local_attention_from_bottomright(self, window_size: int) -> Any:
        """Return a mask that is causal within a window, from the last key on."""
        return _as(BlockDiagonalCausalLocalAttentionFromBottomRightMask, self, _window_size=window_size)


@dataclass
class BlockDiagonalCausalMask(BlockDiagonalMask):
    """Causal within each sequence."""

    is_causal = True


@dataclass
class BlockDiagonalCausalFromBottomRightMask(BlockDiagonalMask):
    """Causal within each sequence, from the last key on."""

    is_causal = True


@dataclass
class BlockDiagonalCausalLocalAttentionMask(BlockDiagonalCausalMask):
    """Causal within a window of each sequence."""

    _window_size: int = 0

    @property
    def window(self) -> tuple[int, int]:  # type: ignore[override]
        return self._window_size - 1, 0


@dataclass
class BlockDiagonalCausalLocalAttentionFromBottomRightMask(BlockDiagonalCausalLocalAttentionMask):
    """Causal within a window of each sequence, from the last key on."""


@dataclass
class BlockDiagonalPaddedKeysMask(BlockDiagonalMask):
    """Sequences of keys have room for more: a cache."""

    @classmethod
    def from_seqlens(  # type: ignore[override]
        cls, q_seqlen: Sequence[int], kv_padding: int, kv_seqlen: Sequence[int], causal_diagonal: Any = None, *,
        device: Any = None,
    ) -> Any:  # fmt: skip
        """Return the mask of sequences of these lengths."""
        return cls(q_seqinfo=_Lengths.of(q_seqlen, device), k_seqinfo=_Lengths.of(kv_seqlen, device, kv_padding))


@dataclass
class BlockDiagonalCausalWithOffsetPaddedKeysMask(BlockDiagonalPaddedKeysMask):
    """Causal within each sequence of a cache."""

    is_causal = True


def _as(kind: type[BlockDiagonalMask], mask: BlockDiagonalMask, **options: Any) -> Any:
    own = {field.name: getattr(mask, field.name) for field in fields(BlockDiagonalMask)}
    return kind(**own, **options)
