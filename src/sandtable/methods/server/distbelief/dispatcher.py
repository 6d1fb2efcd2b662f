"""The dispatcher: where replicas report a finished portion to the coordinator and get the next one.

One request does both, so a replica talks to the coordinator once per portion, in about a hundred bytes each way.
"""

import math
import time
from typing import Any

from sandtable.errors import MethodError
from sandtable.methods.server.distbelief.sessions import Caller, SessionHandler
from sandtable.methods.server.distbelief.settings import COORDINATOR
from sandtable.methods.server.distbelief.work_queue import CountedPortion, PortionReport, WorkQueue
from sandtable.methods.server.listener import DRAIN_S
from sandtable.methods.server.message import Identity, MalformedError, MessageKind, ServerMessage
from sandtable.methods.server.request_handler import RefusedError, ServerReply

__all__ = ["Dispatcher"]


class Dispatcher(SessionHandler):
    """Hands out the portions of the open evaluation; "" is none."""

    def __init__(self, queue: WorkQueue, *, identity: Identity, timeout_s: float) -> None:
        super().__init__(timeout_s=timeout_s)
        self._queue = queue
        self._identity = identity
        self._evaluation = ""
        self._final: str | None = None
        self._reports: list[CountedPortion] = []
        self._is_in_doubt = False
        self._numbers: dict[str, int] = {}
        self._reported_at = time.monotonic()

    # For the coordinator

    def open(self, evaluation: str) -> None:
        """Hand out portions of `evaluation` from now on."""
        with self.changed:
            self._queue.begin()
            self._evaluation, self._reports, self._is_in_doubt = evaluation, [], False
            self._reported_at = time.monotonic()
            self.changed.notify_all()

    def shut(self) -> None:
        """Hand out no more portions until the next evaluation."""
        with self.changed:
            self._evaluation = ""

    def collect(self) -> list[CountedPortion]:
        """Wait for reports, and return the portions answered since the last call, each with the first session.

        Return an empty list when a replica found a shard without this evaluation: check the shards, then call `resume`.
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

    def resume(self) -> None:
        """Hand out portions again: the shards are well."""
        with self.changed:
            self._is_in_doubt = False
            self.changed.notify_all()

    def finish(self, final: str) -> None:
        """Notify replicas that the weights of `final` are the result; wait until they have disconnected."""
        with self.changed:
            self._final = final
            self.changed.notify_all()
            self.changed.wait_for(lambda: not self.callers, timeout=self._timeout_s)

    def fail(self, error: BaseException) -> None:
        """Answer further requests with the error; wait a moment until replicas have sent them."""
        with self.changed:
            self.failure = self.failure or error
            self.changed.notify_all()
            self.changed.wait_for(lambda: not self.callers, timeout=DRAIN_S)

    # For replicas

    def identity_for(self, number: int) -> Identity:
        if number == COORDINATOR:
            raise RefusedError("a replica's number must be 1 or more; 0 is the coordinator's")
        return self._identity

    def welcome(self, caller: Caller) -> dict[str, Any]:
        self._numbers[caller.session] = caller.number
        return {}

    def on_disconnect(self, caller: Caller) -> None:
        self._queue.release(caller.session)

    def answer(self, caller: Caller, message: ServerMessage) -> ServerReply:
        if message.kind is not MessageKind.PORTION:
            raise MalformedError(f"a coordinator does not answer {message.kind.name}")
        with self.changed:
            if "report" in message.fields:
                self._accept(caller, PortionReport.from_wire(message.fields["report"]))
            # It no longer works on any portion, even while it waits.
            self._queue.release(caller.session)
            self.changed.notify_all()
            deadline = time.monotonic() + message.number("patience_s")
            while True:
                self.check_open()
                answer, again_at = self._hand_out(caller)
                now = time.monotonic()
                if answer or now >= deadline:
                    return ServerReply(answer)
                self.changed.wait(max(0.0, min(deadline, again_at) - now))

    def _hand_out(self, caller: Caller) -> tuple[dict[str, Any], float]:
        """Return a portion for `caller`, or nothing and when to check again even if nothing changes."""
        if self._final is not None:
            return {"over": self._final}, math.inf
        if not self._evaluation or self._is_in_doubt:
            return {}, math.inf
        portion = self._queue.next(caller.session, now=time.monotonic())
        if portion is None:
            copy_at = self._queue.next_copy_at
            return {}, math.inf if copy_at is None else copy_at
        span = {"portion": portion.number, "start": portion.start, "stop": portion.stop}
        return {"evaluation": self._evaluation, **span}, math.inf

    def _accept(self, caller: Caller, report: PortionReport) -> None:
        if report.evaluation != self._evaluation:
            return
        if report.loss is None:
            self._is_in_doubt = True
        elif self._queue.count(report.portion, caller.session, float(report.loss), now=time.monotonic()):
            self._reports.append(CountedPortion(report.portion, caller.session))
            self._reported_at = time.monotonic()

    def _nobody_reported(self) -> str:
        outstanding = ", ".join(
            f"portion {number} by replica {' and '.join(str(self._numbers[session]) for session in sessions)}"
            for number, sessions in self._queue.outstanding.items()
        )
        return (
            f"a portion must be done within {self._timeout_s:g} s, but no replica reported one "
            f"(outstanding: {outstanding or 'none, there is no replica'}); start replicas, use smaller portions or "
            "raise timeout_s"
        )
