"""The service: one server's answers to its workers, one thread per connection, one lock for the state.

Think of a bank with a clerk for every customer and one vault: clerks talk at the same time, but only one is in the
vault. Receiving, decoding and sending happen outside the lock; updating and copying the weights inside.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandtable.methods.server.checkpoint import write_checkpoint
from sandtable.methods.server.codecs import Decoder
from sandtable.methods.server.consistency import Consistency
from sandtable.methods.server.members import Member, Members, MemberState
from sandtable.methods.server.message import Channel, Identity, MalformedError, MessageKind, ServerMessage
from sandtable.methods.server.request_handler import RefusedError, RequestHandler, ServerReply
from sandtable.methods.server.shard import Shard

__all__ = ["ServerTally", "Service"]


@dataclass(slots=True)
class ServerTally:
    """A server's counters."""

    num_messages: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    num_pushes: int = 0
    num_late: int = 0
    num_refused: int = 0
    num_checkpoints: int = 0
    checkpoint_s: float = 0.0
    largest_lead: int = 0
    largest_delay: int = 0
    total_delay: int = 0
    joined: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Visit:
    """A worker and its connection."""

    member: Member
    channel: Channel


class Service(RequestHandler[_Visit]):
    """State of one server and the answer to each kind of message."""

    def __init__(
        self,
        shard: Shard,
        members: Members,
        consistency: Consistency,
        decoder: Decoder,
        *,
        identity: Identity,
        timeout_s: float,
    ) -> None:
        super().__init__(timeout_s=timeout_s)
        self._shard = shard
        self._members = members
        self._consistency = consistency
        self._decoder = decoder
        self._identity = identity
        self._saved_version = shard.version
        self._path: Path | None = None
        self._every = 0
        self.tally = ServerTally()

    def keep(self, path: Path, *, every: int) -> None:
        """Write a checkpoint to `path` now if there is none, and before every `every`-th update is acknowledged."""
        self._path, self._every = path, every
        self.save()

    def tick(self, *, expect: bool) -> None:
        """Stop expecting workers that have not appeared in time. Called with the lock held."""
        if not expect and self._members.give_up_expected():
            self._settle()

    def save(self) -> None:
        """Write a checkpoint if there is anything new to save. Called with the lock held."""
        if self._path is None or (self._saved_version == self._shard.version and self._path.exists()):
            return
        start = time.perf_counter()
        write_checkpoint(self._path, self._state())
        self._saved_version = self._shard.version
        self.tally.num_checkpoints += 1
        self.tally.checkpoint_s += time.perf_counter() - start

    def _state(self) -> dict[str, Any]:
        return {
            "digest": self._identity.digest,
            "clock": self._consistency.entry_clock(),
            "members": [
                [m.worker, m.session, self._consistency.applied_clock(m), m.version, m.barrier, m.is_waited_for]
                for m in self._members.unfinished
            ],
            **self._shard.state_dict(),
        }

    # Coming and going

    def admit(self, hello: ServerMessage, channel: Channel) -> _Visit:
        worker, session = hello.integer("worker"), hello.text("session")
        objection = self._identity.objection(hello)
        if objection is not None:
            raise RefusedError(objection)
        returns = hello.fields.get("clock") is not None
        with self.changed:
            member = self._members[worker]
            if returns and member.state is MemberState.PRESENT and member.session not in ("", session):
                raise RefusedError(f"another process has replaced worker {worker}; give each its own number")
            self.register(worker, channel)
            if returns:
                known = member.clock if member.session == session else 0
                member.clock = max(known, hello.integer("clock"))
            else:
                member.clock = self._consistency.entry_clock()
                # An expected worker has yet to reach the barrier at which others wait for it.
                if member.state is not MemberState.EXPECTED:
                    member.barrier = self._members.last_barrier
            member.session, member.state, member.version = session, MemberState.PRESENT, self._shard.version
            self.tally.joined.append(worker)
            answer = {"clock": member.clock, "version": self._shard.version, "barrier": member.barrier}
            self._settle()
        channel.send(MessageKind.ANSWER, answer)
        return _Visit(member, channel)

    def disconnect(self, caller: _Visit | None, channel: Channel) -> None:
        self.tally.num_messages += channel.num_sent + channel.num_received
        self.tally.sent_bytes += channel.sent_bytes
        self.tally.received_bytes += channel.received_bytes
        if caller is None or self._channels.get(caller.member.worker) is not channel:
            return
        del self._channels[caller.member.worker]
        # When the server itself closes, workers are not lost: after a restart it expects them.
        if self._is_open:
            if caller.member.state is MemberState.PRESENT:
                caller.member.state = MemberState.LOST
            self._settle()

    def _settle(self) -> None:
        """Apply updates that have become due, write a checkpoint if one is, and wake all waiting threads."""
        try:
            self._consistency.settle()
            if self._path is not None and self._shard.version - self._saved_version >= self._every:
                self.save()
        except Exception as error:
            self.fail(error)
        self.changed.notify_all()

    # Requests

    def answer(self, caller: _Visit, message: ServerMessage) -> ServerReply:
        handlers: dict[MessageKind, Callable[[_Visit, ServerMessage], ServerReply]] = {
            MessageKind.JOIN: self._join,
            MessageKind.PUSH: self._push,
            MessageKind.PULL: self._pull,
            MessageKind.BARRIER: self._barrier,
            MessageKind.DONE: self._done,
        }
        handler = handlers.get(message.kind)
        if handler is None:
            raise MalformedError(f"a worker may not send {message.kind.name} to a parameter server")
        return handler(caller, message)

    def _join(self, visit: _Visit, message: ServerMessage) -> ServerReply:
        """Begin at `clock` or, if that is over, at the current one."""
        member = visit.member
        with self.changed:
            clock = message.integer("clock")
            if self._consistency.is_late(clock):
                clock = self._consistency.entry_clock()
            member.clock = max(member.clock, clock)
            answer = {"clock": member.clock}
            self._settle()
        return ServerReply(answer)

    def _push(self, visit: _Visit, message: ServerMessage) -> ServerReply:
        member = visit.member
        clock, patience_s = message.integer("clock"), message.number("patience_s")
        pulls = message.fields.get("pull") is True
        gradient = self._decoder.decode(message)
        with self.changed:
            self._check_current(visit)
            # An older clock was applied already: its acknowledgement was lost, and is sent again.
            if clock >= member.clock:
                if self._consistency.is_late(clock):
                    self.tally.num_late += 1
                    return ServerReply({"late": True, "clock": self._consistency.entry_clock()})
                if clock > member.clock:
                    raise MalformedError(f"push {member.clock} of worker {member.worker} must be next, but got {clock}")
                if "options" in message.fields:
                    self._shard.set_options(message.fields["options"])
                self._note_delay(member)
                self._consistency.push(member, gradient)
                self._settle()

            def is_applied() -> bool:
                return self._consistency.applied_clock(member) >= clock + 1

            waited_s = self._wait(visit, is_applied, patience_s)
            if not pulls:
                return ServerReply({"version": self._shard.version, "waited_s": waited_s})
            return self._weights(visit, patience_s, waited_s)

    def _pull(self, visit: _Visit, message: ServerMessage) -> ServerReply:
        patience_s = message.number("patience_s")
        with self.changed:
            self._check_current(visit)
            start = time.monotonic()
            if "after" in message.fields and not self._reaches(message, visit, patience_s):
                return ServerReply({"early": True, "waited_s": time.monotonic() - start})
            return self._weights(visit, patience_s, time.monotonic() - start)

    def _reaches(self, message: ServerMessage, visit: _Visit, patience_s: float) -> bool:
        """Wait for the requested number of updates, or until that worker makes no more; return False if too long."""
        version, worker = message.integer("after"), message.integer("of_worker")
        deadline = time.monotonic() + patience_s
        while self._shard.version < version and self._members[worker].is_waited_for:
            self._check_current(visit)
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            self.changed.wait(min(left_s, 1.0))
        return True

    def _barrier(self, visit: _Visit, message: ServerMessage) -> ServerReply:
        member = visit.member
        number, patience_s = message.integer("number"), message.number("patience_s")
        with self.changed:
            member.barrier = max(member.barrier, number)
            self.changed.notify_all()

            def all_are_here() -> bool:
                return all(other.barrier >= number for other in self._members.waited_for)

            return ServerReply({"waited_s": self._wait(visit, all_are_here, patience_s)})

    def _done(self, visit: _Visit, message: ServerMessage) -> ServerReply:
        with self.changed:
            visit.member.state = MemberState.DONE
            self._settle()
        return ServerReply({})

    def _weights(self, visit: _Visit, patience_s: float, waited_s: float) -> ServerReply:
        """Return a copy of the weights, once the member may have them."""
        member = visit.member

        def may_go_on() -> bool:
            return self._consistency.may_go_on(member)

        waited_s += self._wait(visit, may_go_on, patience_s)
        lead = max(0, member.clock - self._members.slowest)
        self.tally.largest_lead = max(self.tally.largest_lead, lead)
        member.version = self._shard.version
        fields = {"version": self._shard.version, "waited_s": waited_s, "lead": lead}
        return ServerReply(fields, [vector.clone() for vector in self._shard.vectors])

    # Waiting

    def _wait(self, visit: _Visit, is_ready: Callable[[], bool], patience_s: float) -> float:
        """Wait until `is_ready` and return the seconds; after `patience_s` refuse, naming the awaited workers."""
        member = visit.member
        start = time.monotonic()
        while not is_ready():
            self._check_current(visit)
            left_s = start + patience_s - time.monotonic()
            if left_s <= 0:
                others = ", ".join(
                    f"worker {m.worker} (at step {m.clock}, {m.state.value})"
                    for m in self._consistency.laggards(member)
                )
                raise RefusedError(
                    f"worker {member.worker} at step {member.clock} waited {patience_s:g} s for {others or 'others'}; "
                    "raise timeout_s, or stop the hanging worker"
                )
            self.changed.wait(min(left_s, 1.0))
        return time.monotonic() - start

    def _check_current(self, visit: _Visit) -> None:
        self.check_open()
        if self._channels.get(visit.member.worker) is not visit.channel:
            raise ConnectionAbortedError("this connection has been replaced")

    def _note_delay(self, member: Member) -> None:
        """Count the updates since the worker took the weights that its gradient belongs to."""
        delay = max(0, self._shard.version - member.version)
        self.tally.num_pushes += 1
        self.tally.total_delay += delay
        self.tally.largest_delay = max(self.tally.largest_delay, delay)

    def refuse(self, channel: Channel, reason: str) -> None:
        with self.changed:
            self.tally.num_refused += 1
        super().refuse(channel, reason)
