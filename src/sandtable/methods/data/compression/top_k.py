"""Top-k: the components of largest magnitude, exactly k of them.

k = share * n, rounded, at least one. Of equal magnitudes the first are taken, so messages have one length and every
machine chooses alike. Nothing is sorted: a histogram of the leading bits finds the limit.

With chunks (`chunk=4096`) each stretch of the vector sends its own largest, so that no layer is forgotten; with two-bit
values and a fading residual that is SparseLoCo's compressor, `TopK.sparse_loco()`.

Aji and Heafield, 2017 (arXiv:1704.05021); Stich et al., 2018 (arXiv:1809.07599); Sarfi et al., Communication
Efficient LLM Pre-training with SparseLoCo, 2025 (arXiv:2508.15706).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sandtable.methods.data.compression import kernels
from sandtable.methods.data.compression.compression import Codec, require
from sandtable.methods.data.compression.packing import places_bytes
from sandtable.methods.data.compression.sparse import COUNT_BYTES, SparseCodec, check_share, count_of
from sandtable.methods.data.compression.sparse_settings import SparseCompression

__all__ = ["TopK"]


@dataclass(frozen=True, slots=True, repr=False)
class TopK(SparseCompression):
    """The largest `share` of the components: 4 + places + values bytes (4 + 40.6 / 8 * k for float32 at 1 %)."""

    share: float
    chunk: int | None = None
    """Choose in each stretch of this many components instead of in the whole vector."""

    @classmethod
    def sparse_loco(cls, share: float = 64 / 4096) -> TopK:
        """Make SparseLoCo's: 64 of every 4096 components, two bits each, a residual that fades by 0.95."""
        return cls(share, chunk=4096, values="two-bit", decay=0.95)

    def __post_init__(self) -> None:
        check_share(self.share)
        require(self.chunk is None or self.chunk > 0, f"chunk must be at least 1, or None, but got {self.chunk}")
        self._check_sparse()

    def message_bytes(self, num_elements: int, dtype: torch.dtype) -> float:
        return self._sparse_bytes(num_elements, _num_chosen(num_elements, self.share, self.chunk), dtype)

    def _codec(self, num_elements: int, dtype: torch.dtype, device: torch.device, seed: int) -> Codec:
        codec = _TopKCodec(num_elements, dtype, device, values=self.values, share=self.share)
        codec.chunk = self.chunk
        return self._wrapped(codec)


class _TopKCodec(SparseCodec):
    chunk: int | None

    @property
    def fixed_bytes(self) -> int:
        assert self.share is not None
        count = _num_chosen(self.num_elements, self.share, self.chunk)
        return COUNT_BYTES + places_bytes(self.num_elements, count) + self.values.num_bytes(count)

    def _choose(self, vector: Tensor) -> Tensor:
        assert self.share is not None
        if vector.numel() == 0:
            return torch.empty(0, dtype=torch.int64)
        if self.chunk is None:
            return kernels.find_top_k(vector, count_of(vector.numel(), self.share))
        per_chunk, last = count_of(self.chunk, self.share), count_of(vector.numel() % self.chunk, self.share)
        return kernels.find_top_k_of_chunks(vector, self.chunk, per_chunk, last)


def _num_chosen(num_elements: int, share: float, chunk: int | None) -> int:
    if chunk is None:
        return count_of(num_elements, share)
    return num_elements // chunk * count_of(chunk, share) + count_of(num_elements % chunk, share)
