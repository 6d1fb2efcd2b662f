"""Consistency: what a server does with a push, and which workers may continue.

There are two kinds. `Immediate` (for `Asynchronous` and `StaleSynchronous`) applies every push as it comes and holds
back workers that are too far ahead; `Rounds` (for `BulkSynchronous`) collects one push of every worker, then applies
their mean. Methods are called with the server's lock held.
"""

import sys
from abc import ABC, abstractmethod

from sandtable.methods.server.members import Member, Members
from sandtable.methods.server.shard import Gradient, Shard
from sandtable.methods.server.sync import ServerSync

__all__ = ["Consistency", "Immediate", "Rounds", "consistency_for"]


class Consistency(ABC):
    """The order among the workers of one shard."""

    def __init__(self, shard: Shard, members: Members) -> None:
        self._shard = shard
        self._members = members

    @abstractmethod
    def entry_clock(self) -> int:
        """Return the clock at which a worker that joins now begins."""

    @abstractmethod
    def is_late(self, clock: int) -> bool:
        """Return whether a push of this clock comes too late to count."""

    @abstractmethod
    def push(self, member: Member, gradient: Gradient) -> None:
        """Accept the push of `member`, whose clock has not advanced yet."""

    @abstractmethod
    def settle(self) -> None:
        """Apply what has become due since members came, went or advanced."""

    @abstractmethod
    def may_go_on(self, member: Member) -> bool:
        """Return whether `member` may have weights for its next step."""

    @abstractmethod
    def applied_clock(self, member: Member) -> int:
        """Return how many of the member's pushes are in the weights, for checkpoints."""

    @abstractmethod
    def resume(self, clock: int) -> None:
        """Resume from a checkpoint whose slowest member was at `clock`."""

    def laggards(self, member: Member) -> list[Member]:
        """Return the members that `member` waits for."""
        slowest = self._members.slowest
        return [other for other in self._members.waited_for if other.clock == slowest and other is not member]


class Immediate(Consistency):
    """Applies every push at once. No worker continues more than `bound` steps ahead of the slowest."""

    def __init__(self, shard: Shard, members: Members, *, bound: float) -> None:
        super().__init__(shard, members)
        self._bound = bound

    def entry_clock(self) -> int:
        return self._members.slowest

    def is_late(self, clock: int) -> bool:
        return False

    def push(self, member: Member, gradient: Gradient) -> None:
        self._shard.apply([gradient])
        member.clock += 1

    def settle(self) -> None:
        """Do nothing: every push is applied at once."""

    def may_go_on(self, member: Member) -> bool:
        return member.clock - self._members.slowest <= self._bound

    def applied_clock(self, member: Member) -> int:
        return member.clock

    def resume(self, clock: int) -> None:
        """Do nothing: clocks are in the members."""


class Rounds(Consistency):
    """Round r ends when every awaited worker has pushed r; then one update with the mean of these pushes.

    Pushes are added in the order of worker numbers, so that the result does not depend on who was first. A push for a
    round that ended without it is late: its gradient belongs to weights that no longer exist, and is not used.
    """

    def __init__(self, shard: Shard, members: Members) -> None:
        super().__init__(shard, members)
        self._round = 0
        self._pending: dict[int, dict[int, Gradient]] = {}

    def entry_clock(self) -> int:
        return self._round

    def is_late(self, clock: int) -> bool:
        return clock < self._round

    def push(self, member: Member, gradient: Gradient) -> None:
        self._pending.setdefault(member.clock, {})[member.worker] = gradient
        member.clock += 1
        self.settle()

    def settle(self) -> None:
        while self._members.waited_for and self._members.slowest > self._round:
            pushes = self._pending.pop(self._round, {})
            # After a restart nobody may have pushed: the round predates what the workers remember.
            if pushes:
                sys.audit("sandtable.gathered")
                self._shard.apply([pushes[worker] for worker in sorted(pushes)])
            self._round += 1

    def may_go_on(self, member: Member) -> bool:
        return self._round >= member.clock

    def applied_clock(self, member: Member) -> int:
        return min(member.clock, self._round)

    def resume(self, clock: int) -> None:
        self._round = clock


def consistency_for(sync: ServerSync, shard: Shard, members: Members) -> Consistency:
    """Return the consistency that `sync` requires."""
    if sync.max_lead is None:
        return Rounds(shard, members)
    return Immediate(shard, members, bound=sync.max_lead)
