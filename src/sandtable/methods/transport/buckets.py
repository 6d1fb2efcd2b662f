"""Bucket sizes: few enough buckets to be cheap, early enough to leave while other gradients are still computed.

The first bucket is small, so that something is on its way soon; the others are large. What counts is what is sent: with
a compression that leaves a tenth, a bucket holds ten times as much.
"""

import itertools
from collections.abc import Iterable, Sequence

from torch import Tensor

from sandtable.units import MIB

__all__ = ["bucket_sizes", "fill_several"]

_FIRST_BYTES = MIB / 2


def bucket_sizes(bucket_bytes: int, *, sent_share: float = 1.0) -> Iterable[float]:
    """Return the bytes of gradients that fill a bucket: the first, then all others.

    `bucket_bytes` are counted as sent, and `sent_share` is the share of the gradients' bytes that is sent.
    """
    first = min(_FIRST_BYTES, bucket_bytes) / sent_share
    return itertools.chain([first], itertools.repeat(bucket_bytes / sent_share))


def fill_several(parameters: Sequence[Tensor], sizes: Iterable[float]) -> bool:
    """Return whether gradients of these parameters fill more than one bucket.

    A single bucket is full only when the backward pass is over.
    """
    return sum(parameter.nbytes for parameter in parameters) > next(iter(sizes))
