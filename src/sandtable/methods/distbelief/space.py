"""A space of vectors that are cut into shards: all an optimizer needs to know of where the numbers are.

Think of a library whose catalogue is at the desk: slips with titles go to the rooms, and short answers come back.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from sandtable.methods.distbelief.operations import Operation
from sandtable.methods.distbelief.vectors import Vectors

__all__ = ["LocalSpace", "Space"]


class Space(ABC):
    """Shards that carry out the same operations in the same order."""

    @abstractmethod
    def run(self, operations: Sequence[Operation]) -> list[float]:
        """Carry them out on every shard. The dot products among them, in order, added up over the shards."""


class LocalSpace(Space):
    """Shards in this process."""

    def __init__(self, shards: Sequence[Vectors]) -> None:
        self._shards = shards

    def run(self, operations: Sequence[Operation]) -> list[float]:
        totals = []
        for operation in operations:
            parts = [shard.apply(operation) for shard in self._shards]
            known = [part for part in parts if part is not None]
            if known:
                totals.append(sum(known))
        return totals
