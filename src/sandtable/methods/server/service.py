"""The service: one server's answers to its workers, a thread for each connection, one lock for the state.

Think of a bank with a clerk for every customer and one vault: clerks talk at the same time, but only one is in the
vault.
Receiving, decoding and sending happen outside the lock; updating and copying the weights inside.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandtable.methods.server.checkpoint import write_checkpoint
from sandtable.methods.server.clerk import Clerk, RefusedError, Reply
from sandtable.methods.server.coding import Decoder
from sandtable.methods.server.discipline import Discipline
from sandtable.methods.server.members import Member, Members, State
from sandtable.methods.server.message import Channel, Kind, MalformedError, Message
from sandtable.methods.server.shard import Shard

__all__ = ["PROTOCOL", "Identity", "Service", "Tally"]

PROTOCOL = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a worker and a server must agree on before a number is exchanged."""

    shard: int
    digest: str
    sync: str
    compression: str
    byteorder: str = sys.byteorder
    protocol: int = PROTOCOL

    def to_fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    def objection(self, hello: Message) -> str | None:
        """What the worker that says `hello` has otherwise than this server, if anything."""
        for name, ours in self.to_fields().items():
            theirs = hello.fields.get(name)
            if theirs != ours:
                worker = hello.integer("worker")
                return (
                    f"{name} must be the same on workers and servers, but is {theirs} on worker {worker}, {ours} here; "
                    "start both with the same model and settings"
                )
        return None


@dataclass(slots=True)
class Tally:
    """What a server counts."""

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
    """A worker, and the connection over which it speaks."""

    member: Member
    channel: Channel


class Service(Clerk[_Visit]):
    """State of one server and the answer to each kind of message."""

    def __init__(
        self,
        shard: Shard,
        members: Members,
        discipline: Discipline,
        decoder: Decoder,
        *,
        identity: Identity,
        timeout_s: float,
    ) -> None:
        super().__init__(timeout_s=timeout_s)
        self._shard = shard
        self._members = members
        self._discipline = discipline
        self._decoder = decoder
        self._identity = identity
        self._saved_version = shard.version
        self._path: Path | None = None
        self._every = 0
        self.tally = Tally()

    def keep(self, path: Path, *, every: int) -> None:
        """Write a checkpoint to `path` now if there is none, and before every `every`-th update is acknowledged."""
        self._path, self._every = path, every
        self.save()

    def tick(self, *, expect: bool) -> None:
        """With the lock held: stop expecting workers that have not appeared, when their time is over."""
        if not expect and self._members.give_up_expected():
            self._settle()

    def save(self) -> None:
        """With the lock held: write a checkpoint if there is anything new to keep."""
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
            "clock": self._discipline.entry_clock(),
            "members": [
                [m.worker, m.session, self._discipline.applied_clock(m), m.version, m.barrier, m.is_waited_for]
                for m in self._members.unfinished
            ],
            **self._shard.state_dict(),
        }

    # Coming and going

    def admit(self, hello: Message, channel: Channel) -> _Visit:
        worker, session = hello.integer("worker"), hello.text("session")
        objection = self._identity.objection(hello)
        if objection is not None:
            raise RefusedError(objection)
        returns = hello.fields.get("clock") is not None
        with self.changed:
            member = self._members[worker]
            if returns and member.state is State.PRESENT and member.session not in ("", session):
                raise RefusedError(f"worker {worker} has been replaced by another process; give each its own number")
            self.seat(worker, channel)
            if returns:
                known = member.clock if member.session == session else 0
                member.clock = max(known, hello.integer("clock"))
            else:
                member.clock = self._discipline.entry_clock()
                # Who was expected from the start has yet to reach the barrier at which others wait for it.
                if member.state is not State.EXPECTED:
                    member.barrier = self._members.last_barrier
            member.session, member.state, member.version = session, State.PRESENT, self._shard.version
            self.tally.joined.append(worker)
            answer = {"clock": member.clock, "version": self._shard.version, "barrier": member.barrier}
            self._settle()
        channel.send(Kind.ANSWER, answer)
        return _Visit(member, channel)

    def leave(self, caller: _Visit | None, channel: Channel) -> None:
        self.tally.num_messages += channel.num_sent + channel.num_received
        self.tally.sent_bytes += channel.sent_bytes
        self.tally.received_bytes += channel.received_bytes
        if caller is None or self._channels.get(caller.member.worker) is not channel:
            return
        del self._channels[caller.member.worker]
        # When the server itself hangs up, workers are not lost: its next life expects them.
        if self._is_open:
            if caller.member.state is State.PRESENT:
                caller.member.state = State.LOST
            self._settle()

    def _settle(self) -> None:
        """After any change: updates that have become due, a checkpoint if one is, and everybody looks again."""
        try:
            self._discipline.settle()
            if self._path is not None and self._shard.version - self._saved_version >= self._every:
                self.save()
        except Exception as error:
            self.fail(error)
        self.changed.notify_all()

    # Requests

    def answer(self, caller: _Visit, message: Message) -> Reply:
        handlers: dict[Kind, Callable[[_Visit, Message], Reply]] = {
            Kind.JOIN: self._join,
            Kind.PUSH: self._push,
            Kind.PULL: self._pull,
            Kind.BARRIER: self._barrier,
            Kind.DONE: self._done,
        }
        handler = handlers.get(message.kind)
        if handler is None:
            raise MalformedError(f"a worker may not send {message.kind.name} to a parameter server")
        return handler(caller, message)

    def _join(self, visit: _Visit, message: Message) -> Reply:
        """Begin at `clock` or, if that is over, at the clock which is not."""
        member = visit.member
        with self.changed:
            clock = message.integer("clock")
            if self._discipline.is_late(clock):
                clock = self._discipline.entry_clock()
            member.clock = max(member.clock, clock)
            answer = {"clock": member.clock}
            self._settle()
        return answer, ()

    def _push(self, visit: _Visit, message: Message) -> Reply:
        member = visit.member
        clock, patience_s = message.integer("clock"), message.number("patience_s")
        pulls = message.fields.get("pull") is True
        gradient = self._decoder.decode(message)
        with self.changed:
            self._check_current(visit)
            # An older clock was applied already: the acknowledgement was lost, and is given again.
            if clock >= member.clock:
                if self._discipline.is_late(clock):
                    self.tally.num_late += 1
                    return {"late": True, "clock": self._discipline.entry_clock()}, ()
                if clock > member.clock:
                    raise MalformedError(f"push {member.clock} of worker {member.worker} must be next, but got {clock}")
                if "options" in message.fields:
                    self._shard.set_options(message.fields["options"])
                self._note_delay(member)
                self._discipline.push(member, gradient)
                self._settle()

            def is_applied() -> bool:
                return self._discipline.applied_clock(member) >= clock + 1

            waited_s = self._wait(visit, is_applied, patience_s)
            if not pulls:
                return {"version": self._shard.version, "waited_s": waited_s}, ()
            return self._weights(visit, patience_s, waited_s)

    def _pull(self, visit: _Visit, message: Message) -> Reply:
        patience_s = message.number("patience_s")
        with self.changed:
            self._check_current(visit)
            start = time.monotonic()
            if "after" in message.fields and not self._reaches(message, visit, patience_s):
                return {"early": True, "waited_s": time.monotonic() - start}, ()
            return self._weights(visit, patience_s, time.monotonic() - start)

    def _reaches(self, message: Message, visit: _Visit, patience_s: float) -> bool:
        """Wait until there have been as many updates as asked for, or that worker makes no more; False if too long."""
        version, worker = message.integer("after"), message.integer("of_worker")
        deadline = time.monotonic() + patience_s
        while self._shard.version < version and self._members[worker].is_waited_for:
            self._check_current(visit)
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            self.changed.wait(min(left_s, 1.0))
        return True

    def _barrier(self, visit: _Visit, message: Message) -> Reply:
        member = visit.member
        number, patience_s = message.integer("number"), message.number("patience_s")
        with self.changed:
            member.barrier = max(member.barrier, number)
            self.changed.notify_all()

            def all_are_here() -> bool:
                return all(other.barrier >= number for other in self._members.waited_for)

            return {"waited_s": self._wait(visit, all_are_here, patience_s)}, ()

    def _done(self, visit: _Visit, message: Message) -> Reply:
        with self.changed:
            visit.member.state = State.DONE
            self._settle()
        return {}, ()

    def _weights(self, visit: _Visit, patience_s: float, waited_s: float) -> Reply:
        """A copy of the weights, when the member may have them."""
        member = visit.member

        def may_go_on() -> bool:
            return self._discipline.may_go_on(member)

        waited_s += self._wait(visit, may_go_on, patience_s)
        lead = max(0, member.clock - self._members.slowest)
        self.tally.largest_lead = max(self.tally.largest_lead, lead)
        member.version = self._shard.version
        fields = {"version": self._shard.version, "waited_s": waited_s, "lead": lead}
        return fields, [vector.clone() for vector in self._shard.vectors]

    # Waiting

    def _wait(self, visit: _Visit, is_ready: Callable[[], bool], patience_s: float) -> float:
        """Give the lock up until `is_ready`; seconds that took. After `patience_s` say who was waited for."""
        member = visit.member
        start = time.monotonic()
        while not is_ready():
            self._check_current(visit)
            left_s = start + patience_s - time.monotonic()
            if left_s <= 0:
                others = ", ".join(
                    f"worker {m.worker} (at step {m.clock}, {m.state.value})" for m in self._discipline.laggards(member)
                )
                raise RefusedError(
                    f"worker {member.worker} at step {member.clock} waited {patience_s:g} s for {others or 'others'}; "
                    "raise timeout_s, or stop the worker that hangs"
                )
            self.changed.wait(min(left_s, 1.0))
        return time.monotonic() - start

    def _check_current(self, visit: _Visit) -> None:
        self.check_open()
        if self._channels.get(visit.member.worker) is not visit.channel:
            raise ConnectionAbortedError("this connection has been replaced")

    def _note_delay(self, member: Member) -> None:
        """How many updates the weights have had since the worker took those its gradient belongs to."""
        delay = max(0, self._shard.version - member.version)
        self.tally.num_pushes += 1
        self.tally.total_delay += delay
        self.tally.largest_delay = max(self.tally.largest_delay, delay)

    def refuse(self, channel: Channel, reason: str) -> None:
        with self.changed:
            self.tally.num_refused += 1
        super().refuse(channel, reason)
