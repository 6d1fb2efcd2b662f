"""No compression: the numbers unchanged."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sandtable.methods.data.compression.compression import Codec, Compression
from sandtable.methods.data.compression.packing import from_bytes, to_bytes

__all__ = ["NoCompression"]


@dataclass(frozen=True, slots=True, repr=False)
class NoCompression(Compression):
    """Every component in its own dtype: n * itemsize bytes."""

    is_lossless: ClassVar[bool] = True

    def message_bytes(self, num_elements: int, dtype: torch.dtype) -> float:
        return num_elements * dtype.itemsize

    def _codec(self, num_elements: int, dtype: torch.dtype, device: torch.device, seed: int) -> Codec:
        return _PlainCodec(num_elements, dtype, device)


class _PlainCodec(Codec):
    @property
    def fixed_bytes(self) -> int:
        return self.num_elements * self.dtype.itemsize

    def _encode(self, vector: Tensor) -> Tensor:
        return to_bytes(vector.to(self.dtype, copy=True))

    def _decode(self, message: Tensor, out: Tensor, weight: float | None) -> None:
        self._require_length(message, self.fixed_bytes)
        values = from_bytes(message, self.dtype)
        if weight is None:
            out.copy_(values)
        else:
            out.add_(values.to(out.device, out.dtype), alpha=weight)
