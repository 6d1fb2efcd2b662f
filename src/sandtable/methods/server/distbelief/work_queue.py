"""The work queue: which replica works on which portion of a batch, with backup tasks.

Portions are much smaller than a replica's share, so that a slow replica simply does fewer. When all portions are handed
out, a free replica gets a second copy of the oldest one, if it has been out longer than portions take on average; the
first answer counts. Younger ones are nearly done, and a second copy would only keep its replica from the next batch.
MapReduce has such backup tasks, and so has Sandblaster (Dean et al. 2012).
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from sandtable.errors import MethodError
from sandtable.methods.server.message import MalformedError

__all__ = ["CountedPortion", "Portion", "PortionReport", "WorkQueue"]

_MAX_COPIES = 2


@dataclass(frozen=True, slots=True)
class Portion:
    """Samples `start` to `stop` of the batch."""

    number: int
    start: int
    stop: int


class CountedPortion(NamedTuple):
    """A portion and the session whose gradient counts."""

    portion: int
    session: str


class PortionReport(NamedTuple):
    """A replica's report; the loss is None if a shard did not know the evaluation."""

    evaluation: str
    portion: int
    loss: float | None

    @classmethod
    def from_wire(cls, value: Any) -> "PortionReport":
        """Return the report in a message, checked."""
        if type(value) is not list or list(map(type, value[:2])) != [str, int] or len(value) != 3:
            raise MalformedError(f"a report must be [evaluation, portion, loss], but is {value!r}")
        report = cls(*value)
        if type(report.loss) not in (int, float, type(None)):
            raise MalformedError(f"a loss must be a number, but is {report.loss!r}")
        return report


class WorkQueue:
    """One batch, evaluated again and again. A session of a replica works on one portion at a time.

    `now` is a time in seconds, on any monotonic clock.
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
        # Sessions by portion, with their start times. Dictionaries keep the order in which copies were handed out.
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
        """The sum over all portions; it does not depend on their order."""
        return math.fsum(self._losses.values())

    @property
    def outstanding(self) -> dict[int, tuple[str, ...]]:
        """Portions in progress, with the sessions that work on them."""
        return {number: tuple(sessions) for number, sessions in self._out.items()}

    def begin(self) -> None:
        """Queue all portions again."""
        self._out.clear()
        self._losses.clear()
        self._left = list(range(len(self._all) - 1, -1, -1))

    def next(self, session: str, *, now: float) -> Portion | None:
        """Return a portion for `session`, which has none, or None if there is nothing to do now."""
        if self._left:
            number = self._left.pop()
            self._out[number] = {session: now}
            return self._all[number]
        slowest = self._slowest()
        if slowest is None or now < slowest[1]:
            return None
        self._out[slowest[0]][session] = now
        self.num_twice += 1
        return self._all[slowest[0]]

    @property
    def next_copy_at(self) -> float | None:
        """When `next` will hand out a second copy; None if there is nothing to copy."""
        slowest = self._slowest()
        return None if slowest is None else slowest[1]

    def count(self, number: int, session: str, loss: float, *, now: float) -> bool:
        """Count an answer; return whether it is the first for this portion, from a session that works on it."""
        if session not in self._out.get(number, {}):
            return False
        self._total_s += now - self._out.pop(number)[session]
        self._num_timed += 1
        self._losses[number] = loss
        return True

    def release(self, session: str) -> None:
        """Take back the portion of `session`; if no other replica works on it, it is assigned next."""
        for number, sessions in list(self._out.items()):
            if session in sessions:
                del sessions[session]
                if not sessions:
                    del self._out[number]
                    self._left.append(number)
                    self.num_given_back += 1

    def _slowest(self) -> tuple[int, float] | None:
        """Return the oldest portion with a single session, and when it is due for a second."""
        usual_s = self._total_s / self._num_timed if self._num_timed else 0.0
        for number, sessions in self._out.items():
            if len(sessions) < _MAX_COPIES:
                return number, min(sessions.values()) + usual_s
        return None
