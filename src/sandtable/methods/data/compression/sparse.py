"""Sparse messages: how many components, which, and their values. What TopK, RandomK and Threshold share.

A message is the number of components (4 bytes), their places (packing.py) and their values (values.py), in this
order. It never holds a component that was not chosen.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from sandtable.methods.data.compression import kernels
from sandtable.methods.data.compression.compression import Codec, finite, require
from sandtable.methods.data.compression.packing import from_bytes, places_bytes, read_places, to_bytes, write_places
from sandtable.methods.data.compression.values import Values, values_of

__all__ = ["COUNT_BYTES", "SparseCodec", "check_share", "count_of"]

COUNT_BYTES = 4


class SparseCodec(Codec):
    """Sends the components that `_choose` names; `share` may be changed between messages (warm-up)."""

    def __init__(
        self, num_elements: int, dtype: torch.dtype, device: torch.device, *, values: str, share: float | None
    ) -> None:
        super().__init__(num_elements, dtype, device)
        self.values: Values = values_of(values, dtype)
        self.share = share

    def sent(self, message: Tensor) -> Tensor:
        """Return the places that a message names, ascending, on the codec's device."""
        return self._open(self._on_host(message))[0].to(self.device)

    def _encode(self, vector: Tensor) -> Tensor:
        plain = finite(vector)
        places = self._choose(plain)
        count = torch.tensor([places.numel()], dtype=torch.int64).to(torch.uint32)
        values = self._at(places, vector, plain)
        return torch.cat([to_bytes(count), write_places(places, self.num_elements), self.values.write(values)])

    def _decode(self, message: Tensor, out: Tensor, weight: float | None) -> None:
        places, values = self._open(message)
        if weight is None:
            out.zero_()
        if out.dtype == torch.float32 and out.device.type == "cpu" and out.is_contiguous():
            kernels.scatter(values.to(torch.float32).contiguous(), places, out, weight=weight)
        elif weight is None:
            out.index_copy_(0, places.to(out.device), values.to(out.device, out.dtype))
        else:
            out.index_add_(0, places.to(out.device), values.to(out.device, out.dtype), alpha=weight)

    def _at(self, places: Tensor, vector: Tensor, plain: Tensor) -> Tensor:
        """Return the components at the places; those of a float64 vector with all their bits."""
        return vector.to("cpu")[places] if vector.dtype == torch.float64 else kernels.gather(plain, places)

    def _open(self, message: Tensor) -> tuple[Tensor, Tensor]:
        count = self._count_in(message, COUNT_BYTES)
        split = COUNT_BYTES + places_bytes(self.num_elements, count)
        self._require_length(message, split + self.values.num_bytes(count))
        places = read_places(message[COUNT_BYTES:split], self.num_elements, count)
        return places, self.values.read(message[split:], count)

    def _count_in(self, message: Tensor, header_bytes: int) -> int:
        require(
            message.numel() >= header_bytes,
            f"a sparse message must have at least {header_bytes} bytes, but this one has {message.numel()}",
        )
        count = int(from_bytes(message[header_bytes - COUNT_BYTES : header_bytes], torch.uint32).item())
        require(
            count <= self.num_elements,
            f"a message for {self.num_elements} components must name at most as many, but this one names {count}",
        )
        return count

    @abstractmethod
    def _choose(self, vector: Tensor) -> Tensor:
        """Return ascending places (int64) of the components to send, of a finite float32 vector on the host."""


def count_of(num_elements: int, share: float) -> int:
    """Return the number of components in a share: rounded, and at least one if there is any."""
    return min(num_elements, max(1, round(share * num_elements)))


def check_share(share: float) -> None:
    """Refuse a share outside (0, 1]."""
    require(0 < share <= 1, f"share must be above 0 and at most 1, but got {share}; 0.01 sends one component in 100")
