"""The rank channel: how a captured rank talks to the other ranks, through the launcher.

Only small payloads come here (object collectives, shapes, seeds, flags); large tensors have no values to exchange. A
rank posts what it puts into a call and, if it needs what the others put in, waits for the answer. Postings never
block; several threads of a rank (the main one, autograd's) may wait at the same time.
"""

import os
import socket
import threading
from array import array
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sandtable.vgpu.protocol import (
    Answer,
    CallsLogged,
    CallTuple,
    FrameReader,
    GatherAnswered,
    GatherPosted,
    GroupsMade,
    ImportsLogged,
    Message,
    PeerMet,
    PortFound,
    PortOwned,
    PortRecorded,
    PortWanted,
    ReceiveAnswered,
    ReceivePosted,
    SendPosted,
    StopOrdered,
    StoreAnswered,
    StoreOperation,
    StoreRequested,
    ThreadWaiting,
    pack,
)
from sandtable.vgpu.stop import StopCapture
from sandtable.vgpu.turns import Turn

__all__ = ["LoggedCalls", "RankChannel"]

LoggedCalls = tuple[Sequence[str], bytes]
"""Collectives a rank made since it was last asked: the fields of `CallsLogged`."""

_RECEIVE_BYTES = 1 << 18

A = TypeVar("A", bound=Answer)


class RankChannel:
    """One rank's end of the channel to the launcher.

    Calls come as tuples, because most come from the core. Messages carry a log of all collectives of the rank, even
    of those that exchange nothing, so that mismatches are found: `take_logged_calls` returns the new ones.
    """

    def __init__(self, channel: socket.socket, rank: int, turn: Turn) -> None:
        self.take_logged_calls: Callable[[], LoggedCalls] = _no_calls
        self.end_imports: Callable[[], ImportsLogged | None] | None = None
        """Called once, before the first group is announced or the first message is sent."""
        self.host_time: Callable[[], tuple[float, float, str, int]] = lambda: (0.0, 0.0, "", 0)
        """Returns the fields of a `HostTime`."""
        self.timeouts: list[float] = []
        """Of each group of this rank, in order, the seconds after which it gives up."""
        self._channel = channel
        self._turn = turn
        self._rank = rank
        self._is_forked = False
        self._has_started_ranks = False
        os.register_at_fork(after_in_child=self._mark_forked)
        self._sizes: list[int] = []
        self._names: list[str] = []
        self._group_sizes = array("i")
        self._group_ranks = array("i")
        self._sending = threading.RLock()
        self._news = _Condition()
        self._frames = FrameReader()
        self._answers: dict[int, Answer] = {}
        self._is_reading = False
        self._is_posting = False
        self._pending_stop: str | None = None
        self._next_ticket = 1

    def stand_aside(self) -> None:
        """Take no more turns and ask for nothing: this process starts the ranks, and only waits for them."""
        self._turn.leave()
        self._has_started_ranks = True

    def attach(self, channel: socket.socket, rank: int, turn: Turn) -> None:
        """Talk for this rank from now on, in a process that the script started, or that started others."""
        self._channel, self._rank, self._turn = channel, rank, turn
        self._is_forked = self._has_started_ranks = False

    def end_turn(self) -> None:
        """Let another rank compute, at the end of this one."""
        self._turn.leave()

    def announce_group(self, ranks: Sequence[int], name: str) -> None:
        """Announce a group: every one in the order this rank sees them made, the world first."""
        self._end_imports()
        with self._sending:
            self._names.append(name)
            self._group_sizes.append(len(ranks))
            self._group_ranks.extend(ranks)
            if self._rank in ranks:
                self._sizes.append(len(ranks))

    def announce_peer(self, group: int, peer: int) -> None:
        """Announce that point-to-point traffic with global rank `peer` begins, of any size."""
        self._post(PeerMet(group, peer))

    def gather(self, call: CallTuple, payload: bytes | None) -> tuple[Sequence[bytes | None], bytes]:
        """Return what the members of the group put in: a table, and the place of each member's in it.

        Places are raw 32-bit integers, in group order. An unknown payload (None) waits for nothing.
        """
        if payload is None:
            self.post(call, None)
            return (None,), bytes(array("i").itemsize * self._sizes[call[0]])
        answer = self._ask(GatherAnswered, lambda ticket: self._gathering(ticket, call, payload))
        return answer.table, answer.sources

    def post(self, call: CallTuple, payload: bytes | None) -> None:
        """Put in a payload without waiting for the others, as the root of a broadcast does."""
        self._post(self._gathering(0, call, payload))

    def _gathering(self, ticket: int, call: CallTuple, payload: bytes | None) -> GatherPosted:
        timeout = self.timeouts[call[0]] if call[0] < len(self.timeouts) else 0.0
        return GatherPosted(ticket, call, payload, self.host_time(), timeout)

    def send(self, call: CallTuple, payload: bytes | None) -> None:
        """Send a payload to the call's peer."""
        self._post(SendPosted(call, payload))

    def receive(self, call: CallTuple) -> bytes | None:
        """Return what the call's peer sent; None if it is unknown."""
        return self._ask(ReceiveAnswered, lambda ticket: ReceivePosted(ticket, call)).payload

    def ask_store(self, operation: StoreOperation, *arguments: Any) -> Any:
        """Ask the job's key-value store. A rank that looks for others there waits in ways the launcher does not see."""
        self._turn.leave()
        return self._ask(StoreAnswered, lambda ticket: StoreRequested(ticket, int(operation), arguments)).value

    def own_port(self, port: int) -> None:
        """Report that this rank has the port, where it will wait in ways the launcher does not see."""
        if self._is_forked or self._has_started_ranks:
            return
        self._turn.leave()
        self._ask(PortRecorded, lambda ticket: PortOwned(ticket, port))

    def rank_at(self, port: int) -> int | None:
        """Return the rank that has the port, or None."""
        if self._is_forked or self._has_started_ranks:
            return None
        return self._ask(PortFound, lambda ticket: PortWanted(ticket, port)).rank

    def stop(self, reason: str) -> None:
        """Raise StopCapture, on a signal: after a message that is being sent, not in the middle of it."""
        if self._is_posting:
            self._pending_stop = reason
        else:
            raise StopCapture(reason)

    @property
    def is_forked(self) -> bool:
        """Whether this process was forked from the rank's: it has no channel."""
        return self._is_forked

    def report(self, message: Message) -> None:
        """Report something that needs no answer, after everything posted before."""
        self._post(message)

    def _ask(self, kind: type[A], request: Callable[[int], Message]) -> A:
        with self._sending:
            ticket = self._next_ticket
            self._next_ticket += 1
            if threading.current_thread() is not threading.main_thread():
                self._post(ThreadWaiting(ticket))
            self._post(request(ticket))
        answer = self._wait(ticket)
        if isinstance(answer, StopOrdered):
            raise StopCapture(answer.reason)
        assert isinstance(answer, kind), f"a request for {kind.__name__} was answered with {answer}"
        return answer

    def _post(self, message: Message) -> None:
        if self._is_forked:
            raise RuntimeError(
                f"collectives must be called by the rank's own process, but process {os.getpid()} was forked from it; "
                "call them in the main process, not in a worker"
            )
        self._end_imports()
        with self._sending:
            self._is_posting = True
            data = b""
            if self._names:
                groups = GroupsMade(tuple(self._names), self._group_sizes.tobytes(), self._group_ranks.tobytes())
                data += pack(groups)
                self._names, self._group_sizes, self._group_ranks = [], array("i"), array("i")
            if type(message) is not SendPosted:
                texts, rows = self.take_logged_calls()
                if rows:
                    data += pack(CallsLogged(tuple(texts), rows))
            self._turn.send(self._channel, data + pack(message))
            self._is_posting = False
        if self._pending_stop is not None:
            reason, self._pending_stop = self._pending_stop, None
            raise StopCapture(reason)

    def _end_imports(self) -> None:
        end, self.end_imports = self.end_imports, None
        imports = end() if end is not None else None
        if imports is not None:
            self._post(imports)

    def _mark_forked(self) -> None:
        self._is_forked = True

    def _wait(self, ticket: int) -> Answer:
        """Wait for an answer. One of the waiting threads reads for all; the others wake when their answer has come."""
        while True:
            with self._news:
                while ticket not in self._answers and self._is_reading:
                    self._news.wait()
                if ticket in self._answers:
                    return self._answers.pop(ticket)
                self._is_reading = True
            answers: list[Answer] = []
            try:
                self._turn.wait_for(self._channel)
                data = self._channel.recv(_RECEIVE_BYTES)
                if not data:
                    raise StopCapture("launcher ended")
                answers.extend(self._frames.feed(data))
            finally:
                with self._news:
                    self._answers.update((answer.ticket, answer) for answer in answers)
                    self._is_reading = False
                    self._news.notify_all()


class _Condition(threading.Condition):
    """Python's own condition: a thread woken here is no event of the script (see `futures.py`)."""

    notify = threading.Condition.notify
    wait = threading.Condition.wait


def _no_calls() -> LoggedCalls:
    return (), b""
