"""Pace: which of a script's optimizers sets the pace of its steps.

Most scripts have one optimizer, and each of its updates ends a step. Where there are several, a step is one round of
the loop: it ends with each update of the optimizer that updates least often, the *pacemaker*. In a GAN whose critic
steps five times per step of the generator, the generator is the pacemaker.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Paces"]

_PATIENCE = 10
"""An optimizer is out of use when the others have made this many updates since its last one, or twice its usual gap."""


@dataclass(slots=True)
class _Pace:
    """How often one updater updates; moments are numbers of updates of all updaters."""

    last: int
    count: int = 0
    longest_gap: int = 0
    gone_at: int | None = None


class Paces:
    """The paces of all updaters, known by number."""

    def __init__(self) -> None:
        self.num_updates = 0
        self._paces: dict[int, _Pace] = {}

    def admit(self, number: int) -> None:
        """Expect updates of an updater; until it is out of use, no step ends without it."""
        self._paces[number] = _Pace(last=self.num_updates)

    def dismiss(self, number: int) -> None:
        """Expect nothing of an updater that only works inside another one."""
        self._paces.pop(number, None)

    def dismiss_unused(self) -> None:
        """Expect nothing of updaters that have not updated yet."""
        self._paces = {number: pace for number, pace in self._paces.items() if pace.count}

    def release(self, number: int) -> None:
        """Expect no further updates of an updater that no longer exists."""
        if number in self._paces:
            self._paces[number].gone_at = self.num_updates

    def has_updated(self, number: int) -> bool:
        """Return whether an updater has updated."""
        return number in self._paces and self._paces[number].count > 0

    def resume(self, number: int) -> None:
        """Expect updates again of an updater that has been made anew."""
        self._paces[number].gone_at = None

    def count(self, number: int) -> None:
        """Count an update."""
        if number not in self._paces:
            self.admit(number)
        self.num_updates += 1
        pace = self._paces[number]
        pace.longest_gap = max(pace.longest_gap, self.num_updates - pace.last)
        pace.last = self.num_updates
        pace.count += 1

    @property
    def num_steps(self) -> int:
        """How many steps have ended, as far as can be told while the script runs."""
        return min((pace.count for pace in self._paces.values() if self._is_in_use(pace)), default=0)

    def pacemaker(self) -> int | None:
        """Return whose updates end the steps, at the end of the script; of several equals, who was last."""
        used = {number: pace for number, pace in self._paces.items() if pace.count}
        in_use = {number: pace for number, pace in used.items() if self._is_in_use(pace)}
        return min(in_use or used, key=lambda number: (used[number].count, -used[number].last), default=None)

    def _is_in_use(self, pace: _Pace) -> bool:
        if pace.gone_at is not None and self.num_updates > pace.gone_at:
            return False
        return self.num_updates - pace.last < max(_PATIENCE, 2 * pace.longest_gap)
