"""Random-k: k components drawn at random; only their values travel.

One component is drawn from each of k equal stretches of the vector, so each has the same chance k/n. The message
holds the key of the draw (8 bytes) instead of the places: the reader draws again. With the same seed all ranks draw the
same components, so that the sum of all messages is as sparse as one.

Without error feedback values are sent n/k times as large, so that the mean of many messages is the vector (unbiased);
with it they are sent unchanged, since larger ones would make the residual grow.

Stich et al., Sparsified SGD with Memory, 2018 (arXiv:1809.07599); Konečný et al., 2016 (arXiv:1610.05492).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sandtable.methods.data.compression import kernels
from sandtable.methods.data.compression.compression import Codec, finite
from sandtable.methods.data.compression.draws import Draws
from sandtable.methods.data.compression.packing import from_bytes
from sandtable.methods.data.compression.sparse import COUNT_BYTES, SparseCodec, check_share, count_of
from sandtable.methods.data.compression.sparse_settings import SparseCompression
from sandtable.methods.data.compression.values import values_of

__all__ = ["RandomK"]

_KEY_BYTES = 8
_HEADER_BYTES = _KEY_BYTES + COUNT_BYTES


@dataclass(frozen=True, slots=True, repr=False)
class RandomK(SparseCompression):
    """A `share` of the components, drawn at random: 12 + values bytes (12 + 4 k for float32)."""

    share: float

    def __post_init__(self) -> None:
        check_share(self.share)
        self._check_sparse()

    def message_bytes(self, num_elements: int, dtype: torch.dtype) -> float:
        return _HEADER_BYTES + values_of(self.values, dtype).num_bytes(count_of(num_elements, self.share))

    def _codec(self, num_elements: int, dtype: torch.dtype, device: torch.device, seed: int) -> Codec:
        codec = _RandomKCodec(num_elements, dtype, device, values=self.values, share=self.share)
        codec.draws = Draws(seed)
        codec.is_unbiased = not self.error_feedback
        return self._wrapped(codec)


class _RandomKCodec(SparseCodec):
    draws: Draws
    is_unbiased: bool

    @property
    def fixed_bytes(self) -> int:
        assert self.share is not None
        return _HEADER_BYTES + self.values.num_bytes(count_of(self.num_elements, self.share))

    def state_dict(self) -> dict[str, Any]:
        return {"draws": self.draws.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.draws.count = state["draws"]

    def _encode(self, vector: Tensor) -> Tensor:
        plain = finite(vector)
        key = self.draws.next_key()
        places = self._drawn(key)
        values = self._at(places, vector, plain)
        if self.is_unbiased:
            values = values * self._stretches(places.numel())
        header = torch.tensor([*key.to_bytes(8, "little"), *places.numel().to_bytes(4, "little")], dtype=torch.uint8)
        return torch.cat([header, self.values.write(values)])

    def _open(self, message: Tensor) -> tuple[Tensor, Tensor]:
        count = self._count_in(message, _HEADER_BYTES)
        self._require_length(message, _HEADER_BYTES + self.values.num_bytes(count))
        key = int(from_bytes(message[:_KEY_BYTES], torch.int64).item())
        places = kernels.draw_places(self.num_elements, count, key)
        return places, self.values.read(message[_HEADER_BYTES:], count)

    def _drawn(self, key: int) -> Tensor:
        assert self.share is not None
        return kernels.draw_places(self.num_elements, count_of(self.num_elements, self.share), key)

    def _stretches(self, count: int) -> Tensor:
        """Return how many components each drawn one stands for: n/k, rounded down or up."""
        return torch.diff(torch.arange(count + 1) * self.num_elements // max(count, 1))

    def _choose(self, vector: Tensor) -> Tensor:
        return self._drawn(self.draws.next_key())
