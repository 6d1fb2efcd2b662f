"""Values: how the numbers of a sparse message are written, once it is known which components they belong to.

    exact       in the vector's own dtype                          c * itemsize bytes
    float16     rounded to half precision, and so bfloat16         2 c bytes
    two-bit     a sign, and one of two magnitudes of its group     ceil(c / 4) + 8 * ceil(c / 1024) bytes

The two magnitudes are the means of the small and of the large values of each group of 1024, parted at the group's
mean: the first step of Lloyd's algorithm (1982). The 2-bit values of SparseLoCo.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from sandtable.methods.compression.packing import from_bytes, packed_bytes, read_codes, to_bytes, write_codes

__all__ = ["VALUE_FORMATS", "Values", "values_of"]

_GROUP = 1024
_LEVEL_BYTES = 8


class Values(ABC):
    """Writes and reads `count` numbers."""

    @abstractmethod
    def num_bytes(self, count: int) -> int:
        """The length of `count` values."""

    @abstractmethod
    def write(self, values: Tensor) -> Tensor:
        """The bytes of the values."""

    @abstractmethod
    def read(self, message: Tensor, count: int) -> Tensor:
        """The inverse of `write`."""


class PlainValues(Values):
    """Numbers of a floating dtype; what is beyond its end becomes its end."""

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
        values = values.to(torch.float32)
        magnitude = torch.nn.functional.pad(values.abs(), (0, -values.numel() % _GROUP)).view(-1, _GROUP)
        is_there = torch.nn.functional.pad(torch.ones_like(values), (0, -values.numel() % _GROUP)).view(-1, _GROUP)
        is_large = (magnitude > _mean(magnitude, is_there).unsqueeze(1)).to(torch.float32)
        is_small = is_there - is_large
        levels = torch.stack([_mean(magnitude, is_small), _mean(magnitude, is_large)], dim=1)
        codes = (values < 0).to(torch.uint8) * 2 + is_large.view(-1)[: values.numel()].to(torch.uint8)
        return torch.cat([to_bytes(levels.view(-1)), write_codes(codes, 2)])

    def read(self, message: Tensor, count: int) -> Tensor:
        split = _LEVEL_BYTES * -(-count // _GROUP)
        levels = from_bytes(message[:split], torch.float32).view(-1, 2)
        codes = read_codes(message[split:], count, 2)
        group = torch.arange(count) // _GROUP
        values = levels[group, (codes & 1).to(torch.int64)]
        return torch.where(codes >= 2, -values, values)


def _mean(magnitude: Tensor, is_member: Tensor) -> Tensor:
    """By group, of the members alone; zero where there are none."""
    return (magnitude * is_member).sum(1) / is_member.sum(1).clamp(min=1)


VALUE_FORMATS = ("exact", "float16", "bfloat16", "two-bit")


def values_of(name: str, dtype: torch.dtype) -> Values:
    """The format of that name, for vectors of a dtype."""
    if name == "two-bit":
        return TwoBitValues()
    return PlainValues({"exact": dtype, "float16": torch.float16, "bfloat16": torch.bfloat16}[name])
