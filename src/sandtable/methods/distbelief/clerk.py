"""A clerk: answers whoever connects, a thread for each connection, one lock for the state.

The first message says who calls; then each request has one answer, or a refusal that says why.
"""

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sandtable.methods.server.message import Channel, Kind, MalformedError, Message
from sandtable.methods.server.service import Identity
from sandtable.methods.server.shard import raw_bytes

__all__ = ["Caller", "Clerk", "RefusedError", "Reply"]

Reply = tuple[dict[str, Any], Sequence[Tensor]]


class RefusedError(Exception):
    """A request that cannot be granted. The reason is the caller's to read."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls: its number, and the session that changes when its process does."""

    number: int
    session: str


class Clerk(ABC):
    """`changed` guards everything. A caller that comes back replaces its old connection."""

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._channels: dict[Caller, Channel] = {}
        self._is_open = True
        self.changed = threading.Condition()
        self.failure: BaseException | None = None

    @abstractmethod
    def identity_for(self, number: int) -> Identity:
        """What the caller with this number must agree to."""

    @abstractmethod
    def welcome(self, caller: Caller) -> dict[str, Any]:
        """What a caller is told when it comes. With the lock held."""

    @abstractmethod
    def answer(self, caller: Caller, message: Message) -> Reply:
        """The answer to a request. Without the lock: waiting and decoding happen outside it."""

    @abstractmethod
    def part(self, caller: Caller) -> None:
        """A caller has gone, and was not replaced. With the lock held."""

    @property
    def callers(self) -> list[Caller]:
        """Who is connected. With the lock held."""
        return list(self._channels)

    def attend(self, channel: Channel) -> None:
        """Serve one connection until it ends."""
        caller: Caller | None = None
        try:
            first = channel.receive(wait_s=self._timeout_s)
            if first is not None:
                caller = self._admit(first, channel)
                while (message := channel.receive()) is not None:
                    self._respond(channel, caller, message)
        except (MalformedError, RefusedError) as reason:
            self._refuse(channel, str(reason))
        except OSError:
            pass  # The connection is gone; so is the caller, until it comes back.
        except Exception as error:
            with self.changed:
                self.failure = self.failure or error
                self.changed.notify_all()
            self._refuse(channel, f"the server failed: {type(error).__name__}: {error}")
        finally:
            self._leave(caller, channel)
            channel.close()

    def close(self) -> None:
        """End every connection; threads that wait give up."""
        with self.changed:
            self._is_open = False
            channels = list(self._channels.values())
            self.changed.notify_all()
        for channel in channels:
            channel.close()

    def check_open(self) -> None:
        """With the lock held, before and while waiting: whether there is still anybody to answer."""
        if self.failure is not None:
            raise RefusedError(f"the server failed: {type(self.failure).__name__}: {self.failure}")
        if not self._is_open:
            raise ConnectionAbortedError("the server is closing")

    def _admit(self, message: Message, channel: Channel) -> Caller:
        if message.kind is not Kind.HELLO:
            raise MalformedError(f"the first message must be HELLO, but is {message.kind.name}")
        caller = Caller(message.integer("worker"), message.text("session"))
        objection = self.identity_for(caller.number).objection(message)
        if objection is not None:
            raise RefusedError(objection)
        with self.changed:
            self.check_open()
            before = self._channels.get(caller)
            if before is not None:
                before.close()
            self._channels[caller] = channel
            answer = self.welcome(caller)
            self.changed.notify_all()
        channel.send(Kind.ANSWER, answer)
        return caller

    def _respond(self, channel: Channel, caller: Caller, message: Message) -> None:
        try:
            fields, vectors = self.answer(caller, message)
        except RefusedError as reason:
            # The request is refused, not the caller: it may ask again.
            channel.send(Kind.REFUSAL, {"reason": str(reason)})
            return
        channel.send(Kind.ANSWER, fields, [raw_bytes(vector) for vector in vectors])

    def _refuse(self, channel: Channel, reason: str) -> None:
        # There may be nobody left to hear it.
        with contextlib.suppress(OSError):
            channel.send(Kind.REFUSAL, {"reason": reason})

    def _leave(self, caller: Caller | None, channel: Channel) -> None:
        with self.changed:
            if caller is not None and self._channels.get(caller) is channel:
                del self._channels[caller]
                self.part(caller)
            self.changed.notify_all()
