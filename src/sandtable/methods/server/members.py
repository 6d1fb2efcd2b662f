"""Members: the workers a server knows, and how far each one is.

A worker's *clock* is the number of its next push, so it counts its finished steps. A server waits for workers that are
present, and for workers that are expected: all of them at the start, and all in the checkpoint after a restart, until
their time to appear is over. It does not wait for a worker that is lost or done.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

__all__ = ["Member", "MemberState", "Members"]


class MemberState(enum.Enum):
    EXPECTED = "expected"
    PRESENT = "present"
    LOST = "lost"
    DONE = "done"


@dataclass(slots=True, kw_only=True)
class Member:
    """One worker. `session` changes with its process; `version` is that of its weights."""

    worker: int
    session: str = ""
    clock: int = 0
    version: int = 0
    barrier: int = 0
    state: MemberState = MemberState.EXPECTED

    @property
    def is_waited_for(self) -> bool:
        return self.state in (MemberState.EXPECTED, MemberState.PRESENT)


class Members:
    """All workers, by number."""

    def __init__(self, expected: Iterable[int]) -> None:
        self._members = {worker: Member(worker=worker) for worker in expected}

    def __getitem__(self, worker: int) -> Member:
        """Return the member with this number; a new one counts as lost until admitted."""
        return self._members.setdefault(worker, Member(worker=worker, state=MemberState.LOST))

    @property
    def waited_for(self) -> list[Member]:
        return [member for member in self._in_order() if member.is_waited_for]

    @property
    def unfinished(self) -> list[Member]:
        """All members that may come back, lost ones included."""
        return [member for member in self._in_order() if member.state is not MemberState.DONE]

    def numbers(self, state: MemberState) -> tuple[int, ...]:
        return tuple(member.worker for member in self._in_order() if member.state is state)

    @property
    def slowest(self) -> int:
        """The smallest clock among awaited members; if there are none, the largest clock of all."""
        waited_for = [member.clock for member in self.waited_for]
        return min(waited_for) if waited_for else max((m.clock for m in self._members.values()), default=0)

    @property
    def last_barrier(self) -> int:
        return max((member.barrier for member in self._members.values()), default=0)

    def give_up_expected(self) -> tuple[int, ...]:
        """Stop waiting for workers that have not appeared, and return their numbers."""
        missing = self.numbers(MemberState.EXPECTED)
        for worker in missing:
            self._members[worker].state = MemberState.LOST
        return missing

    def expect_again(self, saved: list[list[Any]]) -> None:
        """Restore the members `saved` as [worker, session, clock, version, barrier, whether it was awaited].

        Lost ones are restored too: a push of theirs that was applied must not count twice when they come back.
        """
        if saved:
            self._members = {
                worker: Member(
                    worker=worker,
                    session=session,
                    clock=clock,
                    version=version,
                    barrier=barrier,
                    state=MemberState.EXPECTED if waited_for else MemberState.LOST,
                )
                for worker, session, clock, version, barrier, waited_for in saved
            }

    def _in_order(self) -> list[Member]:
        return [self._members[worker] for worker in sorted(self._members)]
