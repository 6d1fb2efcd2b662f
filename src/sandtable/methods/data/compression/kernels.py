"""Kernels: the C++ that packs and unpacks, as functions of tensors.

See csrc/compression.cpp for the algorithms. The library is plain C++ without torch, compiled once, in seconds, on first
use. A missing compiler is an error (BuildError): nothing else is ever sent instead.

Vectors are contiguous float32 on the host; messages are uint8 and may begin anywhere in a larger buffer.
"""

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from sandtable.native import load_compiled

__all__ = [
    "count_above",
    "draw_places",
    "find_above",
    "find_top_k",
    "find_top_k_of_chunks",
    "first_not_finite",
    "from_signs",
    "from_two_levels",
    "gather",
    "kth_magnitude",
    "quantise",
    "read_map",
    "read_places",
    "restore",
    "scatter",
    "signs",
    "two_levels",
    "write_map",
    "write_places",
]

_SOURCE = Path(__file__).parent / "csrc" / "compression.cpp"
# No contraction: all machines must decode a message to the same floats.
_FLAGS = ("-std=c++20", "-O3", "-ffp-contract=off", "-pthread", "-w")
_MASK = 2**64 - 1


def first_not_finite(vector: Tensor) -> int:
    """Return the first place that is NaN or infinite, or -1."""
    return int(_library().sandtable_first_not_finite(vector.data_ptr(), vector.numel()))


def quantise(vector: Tensor, out: Tensor, *, bucket: int, bits: int, euclidean: bool, nearest: bool, key: int) -> None:
    """Write sign and level of each component, rounded at random by `key` or to nearest, behind the buckets' scales."""
    _library().sandtable_quantise(
        vector.data_ptr(), vector.numel(), bucket, bits, euclidean, nearest, key & _MASK, out.data_ptr(), _threads()
    )


def restore(message: Tensor, out: Tensor, *, bucket: int, bits: int, weight: float | None) -> None:
    """Invert `quantise`: overwrite `out`, or add with a weight."""
    _library().sandtable_restore(
        message.data_ptr(), out.numel(), bucket, bits, out.data_ptr(), weight or 0.0, weight is not None, _threads()
    )


def signs(vector: Tensor, out: Tensor, *, bucket: int) -> None:
    """Write one bit per component, behind the mean magnitudes of the buckets."""
    _library().sandtable_signs(vector.data_ptr(), vector.numel(), bucket, out.data_ptr(), _threads())


def from_signs(message: Tensor, out: Tensor, *, bucket: int, weight: float | None) -> None:
    """Invert `signs`: overwrite `out`, or add with a weight."""
    _library().sandtable_from_signs(
        message.data_ptr(), out.numel(), bucket, out.data_ptr(), weight or 0.0, weight is not None, _threads()
    )


def kth_magnitude(vector: Tensor, k: int) -> float:
    """Return the k-th largest magnitude."""
    return float(_library().sandtable_kth_magnitude(vector.data_ptr(), vector.numel(), k, _threads()))


def find_top_k(vector: Tensor, k: int) -> Tensor:
    """Return the places of the k largest magnitudes, ascending; of equal ones the first."""
    places = torch.empty(k + 1, dtype=torch.int64)
    _library().sandtable_top_k(vector.data_ptr(), vector.numel(), k, places.data_ptr(), _threads())
    return places[:k]


def find_top_k_of_chunks(vector: Tensor, chunk: int, per_chunk: int, last: int) -> Tensor:
    """Return the places of the `per_chunk` largest magnitudes of each chunk, and the `last` largest of the rest."""
    whole, rest = divmod(vector.numel(), chunk)
    count = whole * per_chunk + (last if rest else 0)
    places = torch.empty(count + 1, dtype=torch.int64)
    _library().sandtable_top_k_of_chunks(
        vector.data_ptr(), vector.numel(), chunk, per_chunk, last, places.data_ptr(), _threads()
    )
    return places[:count]


def count_above(vector: Tensor, limit: float) -> int:
    """Return how many magnitudes are above the limit."""
    return int(_library().sandtable_count_above(vector.data_ptr(), vector.numel(), limit))


def find_above(vector: Tensor, limit: float) -> Tensor:
    """Return the places of the magnitudes above the limit, ascending."""
    count = count_above(vector, limit)
    places = torch.empty(count + 1, dtype=torch.int64)
    _library().sandtable_above(vector.data_ptr(), vector.numel(), limit, places.data_ptr())
    return places[:count]


def gather(vector: Tensor, places: Tensor) -> Tensor:
    """Return the components at the places."""
    values = torch.empty(places.numel(), dtype=torch.float32)
    _library().sandtable_gather(vector.data_ptr(), places.data_ptr(), places.numel(), values.data_ptr())
    return values


def scatter(values: Tensor, places: Tensor, out: Tensor, *, weight: float | None) -> None:
    """Overwrite the components of `out` at the places, or add with a weight."""
    if weight is None:
        _library().sandtable_scatter(values.data_ptr(), places.data_ptr(), places.numel(), out.data_ptr())
    else:
        _library().sandtable_scatter_add(values.data_ptr(), places.data_ptr(), places.numel(), weight, out.data_ptr())


def two_levels(values: Tensor, out: Tensor, *, group: int) -> None:
    """Write a sign and one of two magnitudes per value, behind the magnitudes of the groups (multiples of four)."""
    _library().sandtable_two_levels(values.data_ptr(), values.numel(), group, out.data_ptr())


def from_two_levels(message: Tensor, values: Tensor, *, group: int) -> None:
    """Invert `two_levels`: fill `values`."""
    _library().sandtable_from_two_levels(message.data_ptr(), values.numel(), group, values.data_ptr())


def draw_places(num_elements: int, k: int, key: int) -> Tensor:
    """Draw one place in each of k equal strata; the same key draws the same places."""
    places = torch.empty(k, dtype=torch.int64)
    _library().sandtable_draw(num_elements, k, key & _MASK, places.data_ptr())
    return places


def write_places(places: Tensor, num_elements: int, low: int, out: Tensor) -> None:
    """Write ascending places in the code of Elias and Fano with `low` low bits."""
    _library().sandtable_write_places(places.data_ptr(), places.numel(), num_elements, low, out.data_ptr())


def read_places(message: Tensor, num_elements: int, low: int, places: Tensor) -> bool:
    """Invert `write_places`: fill `places`; return False if the message does not hold that many."""
    answer = _library().sandtable_read_places(message.data_ptr(), places.numel(), num_elements, low, places.data_ptr())
    return bool(answer == 0)


def write_map(places: Tensor, num_elements: int, out: Tensor) -> None:
    """Write places as a map of one bit per component."""
    _library().sandtable_write_map(places.data_ptr(), places.numel(), num_elements, out.data_ptr())


def read_map(message: Tensor, num_elements: int, places: Tensor) -> bool:
    """Invert `write_map`."""
    answer = _library().sandtable_read_map(message.data_ptr(), places.numel(), num_elements, places.data_ptr())
    return bool(answer == 0)


def _threads() -> int:
    return torch.get_num_threads()


_P, _N, _I, _F, _KEY = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float, ctypes.c_uint64
_SIGNATURES = {
    "first_not_finite": (_N, (_P, _N)),
    "quantise": (None, (_P, _N, _N, _I, _I, _I, _KEY, _P, _I)),
    "restore": (None, (_P, _N, _N, _I, _P, _F, _I, _I)),
    "signs": (None, (_P, _N, _N, _P, _I)),
    "from_signs": (None, (_P, _N, _N, _P, _F, _I, _I)),
    "kth_magnitude": (_F, (_P, _N, _N, _I)),
    "top_k": (None, (_P, _N, _N, _P, _I)),
    "top_k_of_chunks": (None, (_P, _N, _N, _N, _N, _P, _I)),
    "count_above": (_N, (_P, _N, _F)),
    "above": (None, (_P, _N, _F, _P)),
    "gather": (None, (_P, _P, _N, _P)),
    "scatter": (None, (_P, _P, _N, _P)),
    "scatter_add": (None, (_P, _P, _N, _F, _P)),
    "two_levels": (None, (_P, _N, _N, _P)),
    "from_two_levels": (None, (_P, _N, _N, _P)),
    "draw": (None, (_N, _N, _KEY, _P)),
    "write_places": (None, (_P, _N, _N, _I, _P)),
    "read_places": (_I, (_P, _N, _N, _I, _P)),
    "write_map": (None, (_P, _N, _N, _P)),
    "read_map": (_I, (_P, _N, _N, _P)),
}


@cache
def _library() -> ctypes.CDLL:
    library = load_compiled("compression", _SOURCE, flags=_FLAGS)
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, f"sandtable_{name}")
        function.restype, function.argtypes = result, arguments
    return library
