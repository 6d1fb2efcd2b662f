"""What the settings of TopK, RandomK and Threshold have in common, and how their codecs are put together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from sandtable.methods.compression.compression import Codec, Compression, require
from sandtable.methods.compression.feedback import ErrorFeedback
from sandtable.methods.compression.momentum import MomentumCodec, MomentumCorrection
from sandtable.methods.compression.packing import places_bytes
from sandtable.methods.compression.sparse import COUNT_BYTES, SparseCodec
from sandtable.methods.compression.values import VALUE_FORMATS, values_of

__all__ = ["SparseCompression"]


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class SparseCompression(Compression):
    """The settings that all sparse ones have."""

    is_sparse: ClassVar[bool] = True

    values: Literal["exact", "float16", "bfloat16", "two-bit"] = "exact"
    """How values are written; see values.py."""
    error_feedback: bool = True
    decay: float = 1.0
    """What is left of the residual from one message to the next; SparseLoCo takes 0.95, all others lose nothing."""
    momentum: MomentumCorrection | None = None
    """Deep Gradient Compression: momentum before selection, masked by it; takes the place of error feedback."""

    def _check_sparse(self) -> None:
        require(self.values in VALUE_FORMATS, f"values must be one of {VALUE_FORMATS}, but got {self.values!r}")
        require(
            self.momentum is None or isinstance(self.momentum, MomentumCorrection),
            f"momentum must be a MomentumCorrection, but got {self.momentum!r}; "
            "try MomentumCorrection(factor=0.9), or leave momentum to the optimizer",
        )
        require(0 < self.decay <= 1, f"decay must be above 0 and at most 1, but got {self.decay}")
        require(
            self.decay == 1 or (self.error_feedback and self.momentum is None),
            f"decay ({self.decay}) is of the residual of error feedback; use decay=1 without it or with momentum",
        )
        require(
            self.momentum is None or self.error_feedback,
            "momentum correction keeps what was not sent, so error_feedback must be True; "
            "use error_feedback=True, or momentum=None",
        )

    def _wrapped(self, codec: SparseCodec) -> Codec:
        if self.momentum is not None:
            return MomentumCodec(codec, self.momentum)
        return ErrorFeedback(codec, self.decay) if self.error_feedback else codec

    def _sparse_bytes(self, num_elements: int, count: int, dtype: torch.dtype) -> int:
        """4 + places + values"""
        return COUNT_BYTES + places_bytes(num_elements, count) + values_of(self.values, dtype).num_bytes(count)
