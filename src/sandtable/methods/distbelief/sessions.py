"""A clerk that knows its callers by number and session: a process that takes another's place is another caller."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from sandtable.methods.server.clerk import Clerk, RefusedError
from sandtable.methods.server.message import Channel, Kind, Message
from sandtable.methods.server.service import Identity

__all__ = ["Caller", "SessionClerk"]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls: its number, and the session that changes when its process does."""

    number: int
    session: str


class SessionClerk(Clerk[Caller]):
    """Welcomes callers that agree with it, and says when one has gone for good."""

    @abstractmethod
    def identity_for(self, number: int) -> Identity:
        """What the caller with this number must agree to."""

    @abstractmethod
    def welcome(self, caller: Caller) -> dict[str, Any]:
        """What a caller is told when it comes. With the lock held."""

    @abstractmethod
    def part(self, caller: Caller) -> None:
        """A caller has gone, and was not replaced. With the lock held."""

    @property
    def callers(self) -> list[Caller]:
        """Who is connected. With the lock held."""
        return list(self._channels)

    def admit(self, hello: Message, channel: Channel) -> Caller:
        caller = Caller(hello.integer("worker"), hello.text("session"))
        objection = self.identity_for(caller.number).objection(hello)
        if objection is not None:
            raise RefusedError(objection)
        with self.changed:
            self.check_open()
            self.seat(caller, channel)
            answer = self.welcome(caller)
            self.changed.notify_all()
        channel.send(Kind.ANSWER, answer)
        return caller

    def leave(self, caller: Caller | None, channel: Channel) -> None:
        if caller is not None and self._channels.get(caller) is channel:
            del self._channels[caller]
            self.part(caller)
