"""Portions of a batch: who works on what, and what is given out twice.

Portions are much smaller than a replica's share, so that a slow replica simply does fewer. When none is left that
nobody works on, whoever is free gets a second copy of the one that has been out the longest, if that is longer than
portions take on average; the first answer counts. Younger ones are as good as done, and a second copy would only keep
its replica from the next batch. MapReduce has such backup tasks, and so has Sandblaster (Dean et al. 2012).
"""

import math
from dataclasses import dataclass

from sandtable.errors import MethodError

__all__ = ["Portion", "Portions"]

_MOST_HOLDERS = 2


@dataclass(frozen=True, slots=True)
class Portion:
    """Samples `start` to `stop` of the batch."""

    number: int
    start: int
    stop: int


class Portions:
    """One batch, evaluated again and again. A holder is a session of a replica, and holds one portion at a time.

    `now` is a time in seconds, on any clock that never goes back.
    """

    def __init__(self, *, num_samples: int, size: int) -> None:
        if num_samples < 1 or size < 1:
            raise MethodError(
                f"num_samples and portion_size must be 1 or more, but got ({num_samples}, {size}); "
                "a tenth of a replica's share is a good size"
            )
        self._all = [
            Portion(number, start, min(start + size, num_samples))
            for number, start in enumerate(range(0, num_samples, size))
        ]
        # Who works on it since when. Dictionaries keep the order in which portions, and their copies, were given out.
        self._out: dict[int, dict[str, float]] = {}
        self._left: list[int] = []
        self._losses: dict[int, float] = {}
        self._total_s, self._num_timed = 0.0, 0
        self.num_twice = 0
        self.num_given_back = 0

    def __len__(self) -> int:
        return len(self._all)

    @property
    def are_complete(self) -> bool:
        return len(self._losses) == len(self._all)

    @property
    def loss(self) -> float:
        """The sum over all portions; it does not depend on who was first."""
        return math.fsum(self._losses.values())

    @property
    def outstanding(self) -> dict[int, tuple[str, ...]]:
        """Portions that somebody works on, and who."""
        return {number: tuple(holders) for number, holders in self._out.items()}

    def begin(self) -> None:
        """All portions are to be done again."""
        self._out.clear()
        self._losses.clear()
        self._left = list(range(len(self._all) - 1, -1, -1))

    def next(self, holder: str, *, now: float) -> Portion | None:
        """A portion for `holder`, who holds none, or None as long as there is nothing it could do."""
        if self._left:
            number = self._left.pop()
            self._out[number] = {holder: now}
            return self._all[number]
        slowest = self._slowest()
        if slowest is None or now < slowest[1]:
            return None
        self._out[slowest[0]][holder] = now
        self.num_twice += 1
        return self._all[slowest[0]]

    @property
    def next_copy_at(self) -> float | None:
        """When `next` will give out a second copy, as things are now; None if there is nothing to copy."""
        slowest = self._slowest()
        return None if slowest is None else slowest[1]

    def count(self, number: int, holder: str, loss: float, *, now: float) -> bool:
        """Whether this is the first answer for this portion, by one who works on it."""
        if holder not in self._out.get(number, {}):
            return False
        self._total_s += now - self._out.pop(number)[holder]
        self._num_timed += 1
        self._losses[number] = loss
        return True

    def release(self, holder: str) -> None:
        """`holder` works on nothing any more: what nobody else works on is given out again, first of all."""
        for number, holders in list(self._out.items()):
            if holder in holders:
                del holders[holder]
                if not holders:
                    del self._out[number]
                    self._left.append(number)
                    self.num_given_back += 1

    def _slowest(self) -> tuple[int, float] | None:
        """The portion that has been out the longest among those with one holder, and when it is due for a second."""
        usual_s = self._total_s / self._num_timed if self._num_timed else 0.0
        for number, holders in self._out.items():
            if len(holders) < _MOST_HOLDERS:
                return number, min(holders.values()) + usual_s
        return None
