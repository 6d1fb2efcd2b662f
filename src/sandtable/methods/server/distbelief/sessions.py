"""A request handler that knows its callers by number and session: a process that replaces another is a new caller."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from sandtable.methods.server.message import Channel, Identity, MessageKind, ServerMessage
from sandtable.methods.server.request_handler import RefusedError, RequestHandler

__all__ = ["Caller", "SessionHandler"]


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller: its number, and the session, which changes with its process."""

    number: int
    session: str


class SessionHandler(RequestHandler[Caller]):
    """Admits callers with the right identity, and notices when one has gone for good."""

    @abstractmethod
    def identity_for(self, number: int) -> Identity:
        """Return the identity that the caller with this number must have."""

    @abstractmethod
    def welcome(self, caller: Caller) -> dict[str, Any]:
        """Return the answer to a caller that connects. Called with the lock held."""

    @abstractmethod
    def on_disconnect(self, caller: Caller) -> None:
        """Handle a caller that has gone and was not replaced. Called with the lock held."""

    @property
    def callers(self) -> list[Caller]:
        """The connected callers. Read with the lock held."""
        return list(self._channels)

    def admit(self, hello: ServerMessage, channel: Channel) -> Caller:
        caller = Caller(hello.integer("worker"), hello.text("session"))
        objection = self.identity_for(caller.number).objection(hello)
        if objection is not None:
            raise RefusedError(objection)
        with self.changed:
            self.check_open()
            self.register(caller, channel)
            answer = self.welcome(caller)
            self.changed.notify_all()
        channel.send(MessageKind.ANSWER, answer)
        return caller

    def disconnect(self, caller: Caller | None, channel: Channel) -> None:
        if caller is not None and self._channels.get(caller) is channel:
            del self._channels[caller]
            self.on_disconnect(caller)
