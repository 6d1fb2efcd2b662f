"""The request handler: one thread per connection, one lock for the state.

The first message identifies the caller; then each request gets one answer, or a refusal with its reason.
"""

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from torch import Tensor

from sandtable.methods.server.message import Channel, MalformedError, MessageKind, ServerMessage
from sandtable.methods.server.shard import raw_bytes

__all__ = ["RefusedError", "RequestHandler", "ServerReply"]

Caller = TypeVar("Caller")


class ServerReply(NamedTuple):
    """The answer to a request: fields of the header, and vectors as payload."""

    fields: dict[str, Any]
    vectors: Sequence[Tensor] = ()


class RefusedError(Exception):
    """A request that is refused, with the reason for the caller."""


class RequestHandler(ABC, Generic[Caller]):
    """Answers callers. `changed` guards all state. A caller that reconnects replaces its old connection."""

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._is_open = True
        self._channels: dict[Any, Channel] = {}
        self.changed = threading.Condition()
        self.failure: BaseException | None = None

    @abstractmethod
    def admit(self, hello: ServerMessage, channel: Channel) -> Caller:
        """Identify the sender of `hello`, and answer it. Called without the lock."""

    @abstractmethod
    def answer(self, caller: Caller, message: ServerMessage) -> ServerReply:
        """Answer a request. Called without the lock: waiting and decoding happen outside it."""

    @abstractmethod
    def disconnect(self, caller: Caller | None, channel: Channel) -> None:
        """Handle the end of a connection; `caller` is None if no worker was admitted. Called with the lock held."""

    def serve_connection(self, channel: Channel) -> None:
        """Serve one connection until it ends, in its own thread."""
        caller: Caller | None = None
        try:
            hello = channel.receive(wait_s=self._timeout_s)
            if hello is not None:
                if hello.kind is not MessageKind.HELLO:
                    raise MalformedError(f"the first message must be HELLO, but is {hello.kind.name}")
                caller = self.admit(hello, channel)
                while (message := channel.receive()) is not None:
                    self._respond(channel, caller, message)
        except (MalformedError, RefusedError) as reason:
            self.refuse(channel, str(reason))
        except OSError:
            pass  # The connection is gone, and so is the caller, until it reconnects.
        except Exception as error:
            self.fail(error)
            self.refuse(channel, f"the server failed: {type(error).__name__}: {error}")
        finally:
            with self.changed:
                self.disconnect(caller, channel)
                self.changed.notify_all()
            channel.close()

    def close(self) -> None:
        """End every connection; waiting threads give up."""
        with self.changed:
            self._is_open = False
            channels = list(self._channels.values())
            self.changed.notify_all()
        for channel in channels:
            channel.close()

    def register(self, key: Hashable, channel: Channel) -> None:
        """Make this the connection of `key`, in place of an older one. Called with the lock held."""
        before = self._channels.get(key)
        if before is not None:
            before.close()
        self._channels[key] = channel

    def check_open(self) -> None:
        """Raise if the server has failed or is closing. Called with the lock held, before and while waiting."""
        if self.failure is not None:
            raise RefusedError(f"the server failed: {type(self.failure).__name__}: {self.failure}")
        if not self._is_open:
            raise ConnectionAbortedError("the server is closing")

    def refuse(self, channel: Channel, reason: str) -> None:
        """Send the reason why this connection ends."""
        # The caller may be gone.
        with contextlib.suppress(OSError):
            channel.send(MessageKind.REFUSAL, {"reason": reason})

    def fail(self, error: BaseException) -> None:
        """Record that the server cannot continue, and wake all waiting threads."""
        with self.changed:
            self.failure = self.failure or error
            self.changed.notify_all()

    def _respond(self, channel: Channel, caller: Caller, message: ServerMessage) -> None:
        try:
            reply = self.answer(caller, message)
        except RefusedError as reason:
            # Only this request is refused: the caller may send others.
            channel.send(MessageKind.REFUSAL, {"reason": str(reason)})
            return
        channel.send(MessageKind.ANSWER, reply.fields, [raw_bytes(vector) for vector in reply.vectors])
