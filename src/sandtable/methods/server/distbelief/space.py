"""A space of sharded vectors: all that an optimizer needs to know about where the numbers are.

Think of a library whose catalogue is at the desk: slips with titles go to the rooms, and short answers come back.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from sandtable.methods.server.distbelief.named_vectors import NamedVectors
from sandtable.methods.server.distbelief.operations import Operation

__all__ = ["LocalSpace", "VectorSpace"]


class VectorSpace(ABC):
    """Shards that carry out the same operations in the same order."""

    @abstractmethod
    def run(self, operations: Sequence[Operation]) -> list[float]:
        """Carry out `operations` on every shard. Return their dot products, in order, summed over the shards."""


class LocalSpace(VectorSpace):
    """Shards in this process."""

    def __init__(self, shards: Sequence[NamedVectors]) -> None:
        self._shards = shards

    def run(self, operations: Sequence[Operation]) -> list[float]:
        totals = []
        for operation in operations:
            parts = [shard.apply(operation) for shard in self._shards]
            known = [part for part in parts if part is not None]
            if known:
                totals.append(sum(known))
        return totals
