"""Threshold: the components above a limit.

`Threshold(0.01)`: those whose magnitude exceeds 0.01, however many they are.
`Threshold(share=0.05)`: the limit follows the values so that about that share is sent. It is the (1 - share) quantile
of the magnitudes of 262,144 sampled components, sampled anew for each message: at 5 % a message is within about 1 % of
the share, and the mean of messages is the share. Choosing takes two thirds of the time of an exact top-k.

Strom, Scalable Distributed DNN Training, Interspeech 2015; the adaptive one: Dryden et al., 2016.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sandtable.methods.data.compression import kernels
from sandtable.methods.data.compression.compression import Codec, require
from sandtable.methods.data.compression.draws import Draws
from sandtable.methods.data.compression.sparse import SparseCodec, check_share, count_of
from sandtable.methods.data.compression.sparse_settings import SparseCompression

__all__ = ["Threshold"]

_SAMPLE = 262_144


@dataclass(frozen=True, slots=True, repr=False)
class Threshold(SparseCompression):
    """Components above `limit`, or about a `share` of all: 4 + places + values bytes for as many as there are."""

    limit: float | None = None
    share: float | None = None
    expected_share: float = 0.05
    """The share that `message_bytes` assumes for a static limit, since it depends on the values."""

    def __post_init__(self) -> None:
        require(
            (self.limit is None) != (self.share is None),
            f"a threshold must have either a limit or a share, but got limit={self.limit} and share={self.share}; "
            "use Threshold(0.01) or Threshold(share=0.05)",
        )
        require(self.limit is None or self.limit >= 0, f"limit must be at least 0, but got {self.limit}")
        for share in (self.share, self.expected_share):
            if share is not None:
                check_share(share)
        self._check_sparse()
        require(
            self.limit is None or self.momentum is None or self.momentum.warm_up_steps == 0,
            "warm-up needs a share, but a static threshold has none; use Threshold(share=...), or warm_up_steps=0",
        )

    def message_bytes(self, num_elements: int, dtype: torch.dtype) -> float:
        share = self.expected_share if self.share is None else self.share
        return self._sparse_bytes(num_elements, count_of(num_elements, share), dtype)

    def _codec(self, num_elements: int, dtype: torch.dtype, device: torch.device, seed: int) -> Codec:
        codec = _ThresholdCodec(num_elements, dtype, device, values=self.values, share=self.share)
        codec.limit = self.limit
        codec.draws = Draws(seed)
        return self._wrapped(codec)


class _ThresholdCodec(SparseCodec):
    limit: float | None
    draws: Draws

    def state_dict(self) -> dict[str, Any]:
        return {"draws": self.draws.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.draws.count = state["draws"]

    def _choose(self, vector: Tensor) -> Tensor:
        if self.limit is not None:
            return kernels.find_above(vector, self.limit)
        assert self.share is not None
        key = self.draws.next_key()
        size = min(vector.numel(), _SAMPLE)
        above = count_of(size, self.share)
        if above == size:
            return torch.arange(vector.numel())
        sample = vector
        if size < vector.numel():
            sample = kernels.gather(vector, kernels.draw_places(vector.numel(), size, key))
        return kernels.find_above(vector, kernels.kth_magnitude(sample, above + 1))
