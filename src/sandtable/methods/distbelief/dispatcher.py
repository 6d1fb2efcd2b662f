"""The dispatcher: the coordinator's desk where replicas report what they have done and get the next portion.

One request does both, so a replica talks to the coordinator once a portion, in some hundred bytes each way.
"""

import math
import time
from typing import Any

from sandtable.errors import MethodError
from sandtable.methods.distbelief.portions import Portions
from sandtable.methods.distbelief.sessions import Caller, SessionClerk
from sandtable.methods.distbelief.settings import COORDINATOR
from sandtable.methods.server.clerk import RefusedError, Reply
from sandtable.methods.server.listening import FAREWELL_S
from sandtable.methods.server.message import Kind, MalformedError, Message
from sandtable.methods.server.service import Identity

__all__ = ["Dispatcher"]

Report = tuple[int, str]


class Dispatcher(SessionClerk):
    """Hands out the portions of the evaluation that is open; "" is none."""

    def __init__(self, portions: Portions, *, identity: Identity, timeout_s: float) -> None:
        super().__init__(timeout_s=timeout_s)
        self._portions = portions
        self._identity = identity
        self._evaluation = ""
        self._final: str | None = None
        self._reports: list[Report] = []
        self._is_in_doubt = False
        self._numbers: dict[str, int] = {}
        self._reported_at = time.monotonic()

    # For the coordinator

    def open(self, evaluation: str) -> None:
        """Replicas get portions of it from now on."""
        with self.changed:
            self._portions.begin()
            self._evaluation, self._reports, self._is_in_doubt = evaluation, [], False
            self._reported_at = time.monotonic()
            self.changed.notify_all()

    def shut(self) -> None:
        """No more portions until the next evaluation."""
        with self.changed:
            self._evaluation = ""

    def collect(self) -> list[Report]:
        """Wait for news. Portions that have been answered since the last call, each with the session that was first.

        Empty when a replica found a shard without this evaluation: look after the shards, then call `reassure`.
        """
        with self.changed:
            while not self._reports and not self._is_in_doubt:
                if self.failure is not None:
                    raise self.failure
                left_s = self._reported_at + self._timeout_s - time.monotonic()
                if left_s <= 0:
                    raise MethodError(self._nobody_reported())
                self.changed.wait(left_s)
            reports, self._reports = self._reports, []
            return reports

    def reassure(self) -> None:
        """The shards are well: what was given back may be given out again."""
        with self.changed:
            self._is_in_doubt = False
            self.changed.notify_all()

    def finish(self, final: str) -> None:
        """Tell replicas that it is over, and that the weights of `final` are the answer; wait until they have gone."""
        with self.changed:
            self._final = final
            self.changed.notify_all()
            self.changed.wait_for(lambda: not self.callers, timeout=self._timeout_s)

    def fail(self, error: BaseException) -> None:
        """Replicas that ask are told why there is no more; wait a moment until they have asked."""
        with self.changed:
            self.failure = self.failure or error
            self.changed.notify_all()
            self.changed.wait_for(lambda: not self.callers, timeout=FAREWELL_S)

    # For replicas

    def identity_for(self, number: int) -> Identity:
        if number == COORDINATOR:
            raise RefusedError("a replica must have a number of 1 or more; 0 is the coordinator's")
        return self._identity

    def welcome(self, caller: Caller) -> dict[str, Any]:
        self._numbers[caller.session] = caller.number
        return {}

    def part(self, caller: Caller) -> None:
        self._portions.release(caller.session)

    def answer(self, caller: Caller, message: Message) -> Reply:
        if message.kind is not Kind.PORTION:
            raise MalformedError(f"a coordinator does not answer {message.kind.name}")
        with self.changed:
            if "report" in message.fields:
                self._take(caller, message.fields["report"])
            # Whatever it worked on it works on no more, even while it waits.
            self._portions.release(caller.session)
            self.changed.notify_all()
            deadline = time.monotonic() + message.number("patience_s")
            while True:
                self.check_open()
                answer, again_at = self._hand_out(caller)
                now = time.monotonic()
                if answer or now >= deadline:
                    return answer, ()
                self.changed.wait(max(0.0, min(deadline, again_at) - now))

    def _hand_out(self, caller: Caller) -> tuple[dict[str, Any], float]:
        """What `caller` shall do, or nothing and when to look again even if nothing changes."""
        if self._final is not None:
            return {"over": self._final}, math.inf
        if not self._evaluation or self._is_in_doubt:
            return {}, math.inf
        portion = self._portions.next(caller.session, now=time.monotonic())
        if portion is None:
            copy_at = self._portions.next_copy_at
            return {}, math.inf if copy_at is None else copy_at
        span = {"portion": portion.number, "start": portion.start, "stop": portion.stop}
        return {"evaluation": self._evaluation, **span}, math.inf

    def _take(self, caller: Caller, report: Any) -> None:
        """A report is [evaluation, portion, loss], with None for a loss if a shard did not know the evaluation."""
        if type(report) is not list or [type(entry) for entry in report[:2]] != [str, int] or len(report) != 3:
            raise MalformedError(f"a report must be [evaluation, portion, loss], but is {report!r}")
        evaluation, number, loss = report
        if evaluation != self._evaluation:
            return
        if loss is None:
            self._is_in_doubt = True
        elif type(loss) not in (int, float):
            raise MalformedError(f"a loss must be a number, but is {loss!r}")
        elif self._portions.count(number, caller.session, float(loss), now=time.monotonic()):
            self._reports.append((number, caller.session))
            self._reported_at = time.monotonic()

    def _nobody_reported(self) -> str:
        outstanding = ", ".join(
            f"portion {number} by replica {' and '.join(str(self._numbers[session]) for session in sessions)}"
            for number, sessions in self._portions.outstanding.items()
        )
        return (
            f"a portion must be done within {self._timeout_s:g} s, but no replica reported one "
            f"(outstanding: {outstanding or 'none, no replica is there'}); start replicas, take smaller portions or "
            "raise timeout_s"
        )
