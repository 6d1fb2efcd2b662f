"""The exchange: how a captured rank talks to the other ranks, through the launcher.

Only small payloads come here (object collectives, shapes, seeds, flags); large tensors have no values to exchange. A
rank posts what it puts into a call and, if it needs what the others put in, waits for the answer. Postings never
block; several threads of a rank (the main one, autograd's) may wait at the same time.
"""

import os
import socket
import threading
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sandtable.vgpu.stop import StopCapture
from sandtable.vgpu.turns import Turn
from sandtable.vgpu.wire import Frames, pack

__all__ = ["Call", "CallTuple", "Exchange", "Notes"]

CallTuple = tuple[int, int, str, str, int, str, int, int, int]
"""A call as it crosses languages and processes: the fields of `Call`, in their order."""

Notes = tuple[Sequence[str], bytes]
"""Collectives a rank made: texts not told before, and rows of 7 int64 (see `CallLog.rows`) that number them."""

_RECEIVE_BYTES = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One collective or point-to-point call of a rank.

    `group` is the place in the rank's own list of groups. `seq` counts collectives per group, and point-to-point calls
    per group, peer, direction and tag. `num_bytes` is -1 where members may differ (uneven splits). `peer` is the other
    global rank of a point-to-point call, else -1.
    """

    group: int
    seq: int
    op: str
    dtype: str
    num_bytes: int
    file: str = ""
    line: int = 0
    peer: int = -1
    tag: int = 0

    def to_tuple(self) -> CallTuple:
        return (
            self.group,
            self.seq,
            self.op,
            self.dtype,
            self.num_bytes,
            self.file,
            self.line,
            self.peer,
            self.tag,
        )

    @classmethod
    def of_tuple(cls, values: CallTuple) -> "Call":
        group, seq, op, dtype, num_bytes, file, line, peer, tag = values
        return cls(
            group=group,
            seq=seq,
            op=op,
            dtype=dtype,
            num_bytes=num_bytes,
            file=file,
            line=line,
            peer=peer,
            tag=tag,
        )


class Exchange:
    """One rank's end of the channel to the launcher.

    Calls come as tuples, for most come from the core. All collectives of the rank, those that exchange nothing here
    too, are told in passing, so that mismatches are found: `take_notes` gives those made since it was asked last.
    """

    def __init__(self, channel: socket.socket, rank: int, turn: Turn) -> None:
        self.take_notes: Callable[[], Notes] = _no_notes
        self._channel = channel
        self._turn = turn
        self._rank = rank
        self._is_forked = False
        os.register_at_fork(after_in_child=self._mark_forked)
        self._sizes: list[int] = []
        self._names: list[str] = []
        self._group_sizes = array("i")
        self._group_ranks = array("i")
        self._sending = threading.RLock()
        self._news = _Condition()
        self._frames = Frames()
        self._answers: dict[int, tuple[Any, ...]] = {}
        self._is_reading = False
        self._next_ticket = 1

    def announce_group(self, ranks: Sequence[int], name: str) -> None:
        """A group was made: call it for every group in the order this rank sees them made, the world first."""
        with self._sending:
            members = array("i", ranks)
            self._names.append(name)
            self._group_sizes.append(len(members))
            self._group_ranks.extend(members)
            if self._rank in ranks:
                self._sizes.append(len(members))

    def announce_peer(self, group: int, peer: int) -> None:
        """Point-to-point traffic with global rank `peer` begins, of any size."""
        self._post(("peer", group, peer))

    def gather(self, call: CallTuple, payload: bytes | None) -> list[bytes | None]:
        """What each member of the group put in, in group order. Nothing is awaited if `payload` is unknown (None)."""
        if payload is None:
            self.post(call, None)
            return [None] * self._sizes[call[0]]
        _, _, table, index = self._ask("gather", call, payload)
        return [table[k] for k in array("i", index)]

    def post(self, call: CallTuple, payload: bytes | None) -> None:
        """Puts in what a member has to give that needs nothing from the others: the root of a broadcast."""
        self._post(("gather", 0, call, payload))

    def send(self, call: CallTuple, payload: bytes | None) -> None:
        """Puts a payload on its way to the call's peer."""
        self._post(("send", call, payload))

    def receive(self, call: CallTuple) -> bytes | None:
        """What the call's peer sent; None if it is not known."""
        payload: bytes | None
        _, _, payload = self._ask("receive", call)
        return payload

    def ask_store(self, *request: Any) -> Any:
        """What the job's store answers (see `job_store.py`). Who looks for others there waits in ways nobody sees."""
        self._turn.leave()
        return self._ask("store", *request)[2]

    def own_port(self, port: int) -> None:
        """This rank is reached at the port, and will wait there in ways nobody sees."""
        self._turn.leave()
        self._ask("own port", port)

    def rank_at(self, port: int) -> int | None:
        """The rank that is reached at the port."""
        found: int | None = self._ask("rank at", port)[2]
        return found

    def report(self, *message: Any) -> None:
        """Tells the launcher how the rank ended, after all that was posted before."""
        self._post(message)

    def _ask(self, kind: str, *values: Any) -> tuple[Any, ...]:
        with self._sending:
            ticket = self._next_ticket
            self._next_ticket += 1
            if threading.current_thread() is not threading.main_thread():
                self._post(("aside", ticket))
            self._post((kind, ticket, *values))
        answer = self._wait(ticket)
        if answer[1] == "stop":
            raise StopCapture(answer[2])
        return answer

    def _post(self, message: tuple[Any, ...]) -> None:
        if self._is_forked:
            raise RuntimeError(
                f"collectives must be called by the rank's own process, but process {os.getpid()} was forked from it; "
                "call them in the main process, not in a worker"
            )
        with self._sending:
            data = b""
            if self._names:
                data += pack(("groups", tuple(self._names), self._group_sizes.tobytes(), self._group_ranks.tobytes()))
                self._names, self._group_sizes, self._group_ranks = [], array("i"), array("i")
            if message[0] != "send":
                texts, rows = self.take_notes()
                if rows:
                    data += pack(("notes", tuple(texts), rows))
            self._channel.sendall(data + pack(message))

    def _mark_forked(self) -> None:
        self._is_forked = True

    def _wait(self, ticket: int) -> tuple[Any, ...]:
        """One of the waiting threads reads for all of them; the others are woken when their answer has come."""
        while True:
            with self._news:
                while ticket not in self._answers and self._is_reading:
                    self._news.wait()
                if ticket in self._answers:
                    return self._answers.pop(ticket)
                self._is_reading = True
            answers: list[tuple[Any, ...]] = []
            try:
                self._turn.wait_for(self._channel)
                data = self._channel.recv(_RECEIVE_BYTES)
                if not data:
                    raise StopCapture("launcher ended")
                answers.extend(self._frames.feed(data))
            finally:
                with self._news:
                    self._answers.update((answer[0], answer) for answer in answers)
                    self._is_reading = False
                    self._news.notify_all()


class _Condition(threading.Condition):
    """As Python makes it: that a thread was woken here says nothing about the script (see `jobs.py`)."""

    notify = threading.Condition.notify
    wait = threading.Condition.wait


def _no_notes() -> Notes:
    return (), b""
