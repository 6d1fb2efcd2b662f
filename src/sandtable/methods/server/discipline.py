"""A discipline: what a server does with a push, and who may go on when.

The settings (`BulkSynchronous`, `StaleSynchronous`, `Asynchronous`) become one of two kinds. `Immediate` applies every
push as it comes and holds back those who are too far ahead; `Rounds` collects one push of everybody, then applies
their mean. Methods are called with the server's lock held.
"""

import math
import sys
from abc import ABC, abstractmethod

from sandtable.errors import MethodError
from sandtable.methods.server.members import Member, Members
from sandtable.methods.server.shard import Gradient, Shard
from sandtable.methods.sync.asynchronous import Asynchronous
from sandtable.methods.sync.bulk import BulkSynchronous
from sandtable.methods.sync.stale import StaleSynchronous

__all__ = ["Discipline", "Immediate", "Rounds", "check_sync", "discipline_for"]


class Discipline(ABC):
    """Order among the workers of one shard."""

    def __init__(self, shard: Shard, members: Members) -> None:
        self._shard = shard
        self._members = members

    @abstractmethod
    def entry_clock(self) -> int:
        """The clock at which a worker that joins now begins."""

    @abstractmethod
    def is_late(self, clock: int) -> bool:
        """Whether a push of this clock comes too late to count."""

    @abstractmethod
    def push(self, member: Member, gradient: Gradient) -> None:
        """Take in the push of `member`, whose clock has not been advanced yet."""

    @abstractmethod
    def settle(self) -> None:
        """Do what has become due since members came, went or advanced."""

    @abstractmethod
    def may_go_on(self, member: Member) -> bool:
        """Whether `member` may have weights for its next step."""

    @abstractmethod
    def applied_clock(self, member: Member) -> int:
        """How many of the member's pushes are in the weights: what a checkpoint must say."""

    @abstractmethod
    def resume(self, clock: int) -> None:
        """Begin from a checkpoint whose slowest member was at `clock`."""

    def laggards(self, member: Member) -> list[Member]:
        """Those `member` waits for."""
        slowest = self._members.slowest
        return [other for other in self._members.waited_for if other.clock == slowest and other is not member]


class Immediate(Discipline):
    """Every push is one update, at once. Nobody goes on more than `bound` steps ahead of the slowest."""

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
        """Nothing is ever held back but the workers themselves."""

    def may_go_on(self, member: Member) -> bool:
        return member.clock - self._members.slowest <= self._bound

    def applied_clock(self, member: Member) -> int:
        return member.clock

    def resume(self, clock: int) -> None:
        """Clocks are in the members."""


class Rounds(Discipline):
    """Round r ends when everybody who is waited for has pushed r; then one update with the mean of these pushes.

    Pushes are added in the order of worker numbers, so that the result does not depend on who was first. A push for a
    round that ended without it is late: its gradient belongs to weights that are no more, and it is not used.
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
            # After a restart nobody may have pushed: the round lies before what the workers remember.
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


def check_sync(sync: object) -> None:
    """Refuse what no discipline is for."""
    if not isinstance(sync, BulkSynchronous | StaleSynchronous | Asynchronous):
        raise MethodError(
            "sync must be BulkSynchronous(), StaleSynchronous(bound) or Asynchronous() with a parameter server, "
            f"but got {sync!r}; "
            "StaleSynchronous with the period as its bound is nearest to local steps"
        )


def discipline_for(sync: object, shard: Shard, members: Members) -> Discipline:
    """The discipline that `sync` asks for."""
    check_sync(sync)
    if isinstance(sync, BulkSynchronous):
        return Rounds(shard, members)
    return Immediate(shard, members, bound=sync.bound if isinstance(sync, StaleSynchronous) else math.inf)
