"""What the settings of TopK, RandomK and Threshold have in common, and how their codecs are assembled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from sandtable.methods.data.compression.compression import Codec, Compression, require
from sandtable.methods.data.compression.feedback import ErrorFeedback
from sandtable.methods.data.compression.momentum import MomentumCodec, MomentumCorrection
from sandtable.methods.data.compression.packing import places_bytes
from sandtable.methods.data.compression.sparse import COUNT_BYTES, SparseCodec
from sandtable.methods.data.compression.values import VALUE_FORMATS, values_of

__all__ = ["SparseCompression"]


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class SparseCompression(Compression):
    """The settings of all sparse compressions."""

    is_sparse: ClassVar[bool] = True

    values: Literal["exact", "float16", "bfloat16", "two-bit"] = "exact"
    """How values are written; see values.py."""
    error_feedback: bool = True
    decay: float = 1.0
    """The share of the residual that survives from one message to the next; SparseLoCo uses 0.95, all others 1."""
    momentum: MomentumCorrection | None = None
    """Deep Gradient Compression: momentum before selection, masked by it; replaces error feedback."""

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
            f"decay ({self.decay}) acts on the residual of error feedback; use decay=1 without it or with momentum",
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
        """Compute 4 + places + values."""
        return COUNT_BYTES + places_bytes(num_elements, count) + values_of(self.values, dtype).num_bytes(count)
