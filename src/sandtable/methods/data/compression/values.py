"""Values: how the numbers of a sparse message are written, once it is known which components they belong to.

    exact       in the vector's own dtype                          c * itemsize bytes
    float16     rounded to half precision, and so bfloat16         2 c bytes
    two-bit     a sign, and one of two magnitudes of its group     ceil(c / 4) + 8 * ceil(c / 1024) bytes

The two magnitudes are the means of the small and of the large values of each group of 1024, split at the group's mean:
the first step of Lloyd's algorithm (1982). These are the 2-bit values of SparseLoCo.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from sandtable.methods.data.compression import kernels
from sandtable.methods.data.compression.packing import from_bytes, packed_bytes, to_bytes

__all__ = ["VALUE_FORMATS", "Values", "values_of"]

_GROUP = 1024
_LEVEL_BYTES = 8


class Values(ABC):
    """Writes and reads `count` numbers."""

    @abstractmethod
    def num_bytes(self, count: int) -> int:
        """Return the length of `count` values."""

    @abstractmethod
    def write(self, values: Tensor) -> Tensor:
        """Return the bytes of the values."""

    @abstractmethod
    def read(self, message: Tensor, count: int) -> Tensor:
        """Invert `write`."""


class PlainValues(Values):
    """Numbers of a floating dtype; values beyond its range become its ends."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def num_bytes(self, count: int) -> int:
        return count * self.dtype.itemsize

    def write(self, values: Tensor) -> Tensor:
        ends = torch.finfo(self.dtype)
        return to_bytes(values.clamp(ends.min, ends.max).to(self.dtype))

    def read(self, message: Tensor, count: int) -> Tensor:
        return from_bytes(message, self.dtype)


class TwoBitValues(Values):
    """The two magnitudes of each group as float32, then the codes: 2 * is_negative + is_large."""

    def num_bytes(self, count: int) -> int:
        return _LEVEL_BYTES * -(-count // _GROUP) + packed_bytes(count, 2)

    def write(self, values: Tensor) -> Tensor:
        message = torch.empty(self.num_bytes(values.numel()), dtype=torch.uint8)
        kernels.two_levels(values.to(torch.float32).contiguous(), message, group=_GROUP)
        return message

    def read(self, message: Tensor, count: int) -> Tensor:
        values = torch.empty(count, dtype=torch.float32)
        kernels.from_two_levels(message, values, group=_GROUP)
        return values


VALUE_FORMATS = ("exact", "float16", "bfloat16", "two-bit")


def values_of(name: str, dtype: torch.dtype) -> Values:
    """Return the format of that name for vectors of `dtype`."""
    if name == "two-bit":
        return TwoBitValues()
    return PlainValues({"exact": dtype, "float16": torch.float16, "bfloat16": torch.bfloat16}[name])
