"""Half: each component in 16 bits.

float16 has 11 significant bits and ends at 65504; bfloat16 has 8, and the range of float32. What rounding loses stays
in the residual, as does what exceeds 65504 with float16. Without error feedback nothing is checked: overflow gives
infinity and NaN passes, as a gradient scaler expects.

An all-reduce sums such numbers in transit, as DDP's fp16 hook does: what rounding the sums loses is lost for good.

Micikevicius et al., Mixed Precision Training, 2018 (arXiv:1710.03740).
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sandtable.methods.data.compression.compression import Codec, Compression, require
from sandtable.methods.data.compression.feedback import ErrorFeedback
from sandtable.methods.data.compression.packing import from_bytes, to_bytes

__all__ = ["Half"]

_FORMATS = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, repr=False)
class Half(Compression):
    """Each component as float16 or bfloat16: 2 n bytes."""

    format: Literal["float16", "bfloat16"] = "float16"
    error_feedback: bool = True

    def __post_init__(self) -> None:
        require(self.format in _FORMATS, f'format must be "float16" or "bfloat16", but got {self.format!r}')

    @property
    def sum_dtype(self) -> torch.dtype:
        return _FORMATS[self.format]

    def message_bytes(self, num_elements: int, dtype: torch.dtype) -> float:
        return 2 * num_elements

    def _codec(self, num_elements: int, dtype: torch.dtype, device: torch.device, seed: int) -> Codec:
        codec = _HalfCodec(num_elements, dtype, device)
        codec.format = _FORMATS[self.format]
        codec.saturates = self.error_feedback
        return ErrorFeedback(codec) if self.error_feedback else codec


class _HalfCodec(Codec):
    format: torch.dtype
    saturates: bool

    @property
    def fixed_bytes(self) -> int:
        return 2 * self.num_elements

    def _encode(self, vector: Tensor) -> Tensor:
        values = vector.to(self.format, copy=True)
        if self.saturates:
            ends = torch.finfo(self.format)
            values.clamp_(ends.min, ends.max)
        return to_bytes(values)

    def _decode(self, message: Tensor, out: Tensor, weight: float | None) -> None:
        self._require_length(message, self.fixed_bytes)
        values = from_bytes(message, self.format)
        if weight is None:
            out.copy_(values)
        else:
            out.add_(values.to(out.device, out.dtype), alpha=weight)
