"""Members: the workers a server knows, and how far each of them is.

A worker's *clock* is the number of its next push, so it counts the steps it has finished. Who is waited for: workers
that are present, and workers that are expected, which is everybody at the start and everybody in the checkpoint
after a restart, until their time to appear is over. Nobody waits for one that is lost or done.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

__all__ = ["Member", "Members", "State"]


class State(enum.Enum):
    EXPECTED = "expected"
    PRESENT = "present"
    LOST = "lost"
    DONE = "done"


@dataclass(slots=True, kw_only=True)
class Member:
    """One worker. `session` changes when its process does; `version` is that of the weights it has."""

    worker: int
    session: str = ""
    clock: int = 0
    version: int = 0
    barrier: int = 0
    state: State = State.EXPECTED

    @property
    def is_waited_for(self) -> bool:
        return self.state in (State.EXPECTED, State.PRESENT)


class Members:
    """All workers, by number."""

    def __init__(self, expected: Iterable[int]) -> None:
        self._members = {worker: Member(worker=worker) for worker in expected}

    def __getitem__(self, worker: int) -> Member:
        """The member with this number; a new one is lost until it is admitted."""
        return self._members.setdefault(worker, Member(worker=worker, state=State.LOST))

    @property
    def waited_for(self) -> list[Member]:
        return [member for member in self._in_order() if member.is_waited_for]

    @property
    def unfinished(self) -> list[Member]:
        """Everybody who may come back, lost ones included."""
        return [member for member in self._in_order() if member.state is not State.DONE]

    def numbers(self, state: State) -> tuple[int, ...]:
        return tuple(member.worker for member in self._in_order() if member.state is state)

    @property
    def slowest(self) -> int:
        """The smallest clock among those that are waited for; if there are none, the largest anybody had."""
        waited_for = [member.clock for member in self.waited_for]
        return min(waited_for) if waited_for else max((m.clock for m in self._members.values()), default=0)

    @property
    def last_barrier(self) -> int:
        return max((member.barrier for member in self._members.values()), default=0)

    def give_up_expected(self) -> tuple[int, ...]:
        """Nobody waits any longer for workers that have not appeared. Returns their numbers."""
        missing = self.numbers(State.EXPECTED)
        for worker in missing:
            self._members[worker].state = State.LOST
        return missing

    def expect_again(self, saved: list[list[Any]]) -> None:
        """Know the members `saved` as [worker, session, clock, version, barrier, whether it was waited for].

        A lost one is known too: if it comes back, it must not be credited twice for a push that was applied.
        """
        if saved:
            self._members = {
                worker: Member(
                    worker=worker,
                    session=session,
                    clock=clock,
                    version=version,
                    barrier=barrier,
                    state=State.EXPECTED if waited_for else State.LOST,
                )
                for worker, session, clock, version, barrier, waited_for in saved
            }

    def _in_order(self) -> list[Member]:
        return [self._members[worker] for worker in sorted(self._members)]
