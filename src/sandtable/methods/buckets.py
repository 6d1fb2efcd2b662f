"""How large buckets of gradients are: few enough to be cheap, early enough to leave while others are still computed.

The first bucket is small, so that something is on its way soon; the others are large. What counts is what is sent: of
a compression that leaves a tenth, a bucket holds ten times as much. Factors (PowerSGD) are made of one bucket alone,
since they are small whatever it holds.
"""

import itertools
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from sandtable.methods.compression import Compression
from sandtable.units import MIB

__all__ = ["bucket_sizes", "has_several"]

_FIRST_BYTES = MIB / 2
_SAMPLE_ELEMENTS = 1 << 20


def bucket_sizes(compression: Compression, bucket_bytes: int) -> Iterable[float]:
    """Bytes of gradients after which a bucket is full: the first, then all others."""
    if hasattr(compression, "reducer"):
        return itertools.repeat(float(bucket_bytes))
    sent = compression.message_bytes(_SAMPLE_ELEMENTS, torch.float32) / (4 * _SAMPLE_ELEMENTS)
    first = min(_FIRST_BYTES, bucket_bytes) / sent
    return itertools.chain([first], itertools.repeat(bucket_bytes / sent))


def has_several(parameters: Sequence[Tensor], sizes: Iterable[float]) -> bool:
    """Whether gradients of these parameters fill more than one: a single one is full when the backward pass is over."""
    return sum(parameter.nbytes for parameter in parameters) > next(iter(sizes))
