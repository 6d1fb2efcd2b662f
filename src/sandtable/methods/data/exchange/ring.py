"""The explicit ring: N ranks in a circle, each passing pieces to the right, 2(N-1) steps of 1/N of the buffer.

    step 1 .. N-1      reduce: each rank adds what arrives to its own and passes it on, until it has one full sum
    step N .. 2(N-1)   gather: full sums go once round the circle

Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
"""

import torch
from torch import Tensor

from sandtable.methods.transport.wire import Wire

__all__ = ["ring_all_reduce"]


def ring_all_reduce(wire: Wire, tensor: Tensor) -> None:
    """Sum over all ranks, in place."""
    size, rank = wire.size, wire.rank
    if size == 1:
        return
    pieces = tensor.tensor_split(size)
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        outgoing, incoming = pieces[(rank - step) % size], pieces[(rank - step - 1) % size]
        arrived = torch.empty_like(incoming)
        wire.exchange({right: outgoing}, {left: arrived})
        incoming.add_(arrived)
    for step in range(size - 1):
        outgoing, incoming = pieces[(rank + 1 - step) % size], pieces[(rank - step) % size]
        wire.exchange({right: outgoing}, {left: incoming})
