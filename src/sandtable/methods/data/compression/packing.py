"""Packing: ascending places in as few bytes as possible, and the formulas of lengths.

Places (which components are sent) are written in the code of Elias and Fano (1974): the `low` last bits of each place
unchanged, and the rest in unary, one bit per place and one bit per stretch of 2^low components. For c of n
components:

    ceil(c * low / 8) + ceil((c + floor((n - 1) / 2^low)) / 8)    bytes

with the `low` that minimises it: about log2(n / c) + 1.6 bits per place (8.6 bits at 1 %, where a plain index has 32,
and no code needs less than 8.1 on average). The length depends on n and c alone, so both sides know it beforehand.
Where a map of n bits is shorter (c above about n / 3), a map is sent; if all n are sent, nothing.
"""

import torch
from torch import Tensor

from sandtable.methods.data.compression import kernels
from sandtable.methods.data.compression.compression import require

__all__ = ["from_bytes", "packed_bytes", "places_bytes", "read_places", "to_bytes", "write_places"]


def packed_bytes(count: int, bits: int) -> int:
    """Compute ceil(count * bits / 8)."""
    return (count * bits + 7) // 8


def places_bytes(num_elements: int, count: int) -> int:
    """Return the length of `count` ascending places below `num_elements`."""
    return _form(num_elements, count)[1]


def write_places(places: Tensor, num_elements: int) -> Tensor:
    """Write ascending places (int64) below `num_elements`."""
    low, size = _form(num_elements, places.numel())
    message = torch.empty(size, dtype=torch.uint8)
    if size == 0:
        return message
    if low is None:
        kernels.write_map(places, num_elements, message)
    else:
        kernels.write_places(places, num_elements, low, message)
    return message


def read_places(message: Tensor, num_elements: int, count: int) -> Tensor:
    """Invert `write_places`."""
    low, size = _form(num_elements, count)
    if size == 0:
        return torch.arange(count)
    places = torch.empty(count, dtype=torch.int64)
    if low is None:
        is_sound = kernels.read_map(message, num_elements, places)
    else:
        is_sound = kernels.read_places(message, num_elements, low, places)
    require(is_sound, f"a message must name {count} ascending places below {num_elements}, but this one is damaged")
    return places


def to_bytes(values: Tensor) -> Tensor:
    """Return the bytes of the numbers, unchanged."""
    return values.contiguous().view(torch.uint8)


def from_bytes(message: Tensor, dtype: torch.dtype) -> Tensor:
    """Invert `to_bytes`; copy a message that is not aligned in its buffer."""
    if message.storage_offset() % dtype.itemsize or message.data_ptr() % dtype.itemsize:
        message = message.clone()
    return message.view(dtype)


def _form(num_elements: int, count: int) -> tuple[int | None, int]:
    """Return the number of low bits (None: a map), and the length in bytes."""
    if count in (0, num_elements):
        return None, 0
    map_bytes = packed_bytes(num_elements, 1)
    exact = max((num_elements // count).bit_length() - 1, 0)
    size, low = min(
        (packed_bytes(count, low) + packed_bytes(count + ((num_elements - 1) >> low), 1), low)
        for low in range(max(exact - 1, 0), exact + 2)
    )
    return (None, map_bytes) if map_bytes <= size else (low, size)
