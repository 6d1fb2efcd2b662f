"""Compression: how a vector becomes the bytes of a message, and back.

A `Compression` is a setting: small, comparable, printable. Its `codec(...)` is the state of one vector on one rank,
such as what error feedback has not sent yet.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

__all__ = ["Codec", "Compression", "NoCompression"]


class Codec(ABC):
    """One vector on one rank: makes messages of it, and reads those of others."""

    @abstractmethod
    def encode(self, vector: Tensor) -> Tensor:
        """The message: 1-D uint8, complete in itself, exactly what goes over the wire."""

    @abstractmethod
    def decode(self, message: Tensor, out: Tensor) -> None:
        """Overwrite `out` with what the message says, and with zero where it says nothing."""

    def add(self, message: Tensor, out: Tensor, weight: float = 1.0) -> None:
        """out += weight · decoded message."""
        decoded = torch.empty_like(out)
        self.decode(message, decoded)
        out.add_(decoded, alpha=weight)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert not state, "this codec keeps no state"


class Compression(ABC):
    """Settings of a compression."""

    is_sparse: ClassVar[bool] = False
    is_lossless: ClassVar[bool] = False

    @abstractmethod
    def codec(self, num_elements: int, dtype: torch.dtype, device: torch.device, seed: int = 0) -> Codec:
        """The state of one vector on one rank."""

    @abstractmethod
    def message_bytes(self, num_elements: int, dtype: torch.dtype) -> float:
        """Bytes of a message, by formula; the expected size where it depends on the values."""


@dataclass(frozen=True)
class NoCompression(Compression):
    """Every component as it is in memory."""

    is_lossless: ClassVar[bool] = True

    def codec(self, num_elements: int, dtype: torch.dtype, device: torch.device, seed: int = 0) -> Codec:
        return _Plain()

    def message_bytes(self, num_elements: int, dtype: torch.dtype) -> float:
        return float(num_elements * dtype.itemsize)


class _Plain(Codec):
    def encode(self, vector: Tensor) -> Tensor:
        return vector.contiguous().view(torch.uint8)

    def decode(self, message: Tensor, out: Tensor) -> None:
        out.copy_(message.view(out.dtype))
