"""A clerk: answers whoever connects, a thread for each connection, one lock for the state.

The first message says who calls; then each request has one answer, or a refusal that says why.
"""

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any, Generic, TypeVar

from torch import Tensor

from sandtable.methods.server.message import Channel, Kind, MalformedError, Message
from sandtable.methods.server.shard import raw_bytes

__all__ = ["Clerk", "RefusedError", "Reply"]

Reply = tuple[dict[str, Any], Sequence[Tensor]]
Caller = TypeVar("Caller")


class RefusedError(Exception):
    """A request that cannot be granted. The reason is the caller's to read."""


class Clerk(ABC, Generic[Caller]):
    """`changed` guards everything. Who comes back is seated again, and its old connection closed."""

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._is_open = True
        self._channels: dict[Any, Channel] = {}
        self.changed = threading.Condition()
        self.failure: BaseException | None = None

    @abstractmethod
    def admit(self, hello: Message, channel: Channel) -> Caller:
        """Who says `hello`, after it was told that it is welcome. Without the lock."""

    @abstractmethod
    def answer(self, caller: Caller, message: Message) -> Reply:
        """The answer to a request. Without the lock: waiting and decoding happen outside it."""

    @abstractmethod
    def leave(self, caller: Caller | None, channel: Channel) -> None:
        """A connection has ended; `caller` is None if nobody was admitted. With the lock held."""

    def attend(self, channel: Channel) -> None:
        """Serve one connection until it ends. Runs in a thread of its own."""
        caller: Caller | None = None
        try:
            hello = channel.receive(wait_s=self._timeout_s)
            if hello is not None:
                if hello.kind is not Kind.HELLO:
                    raise MalformedError(f"the first message must be HELLO, but is {hello.kind.name}")
                caller = self.admit(hello, channel)
                while (message := channel.receive()) is not None:
                    self._respond(channel, caller, message)
        except (MalformedError, RefusedError) as reason:
            self.refuse(channel, str(reason))
        except OSError:
            pass  # The connection is gone; so is the caller, until it comes back.
        except Exception as error:
            self.fail(error)
            self.refuse(channel, f"the server failed: {type(error).__name__}: {error}")
        finally:
            with self.changed:
                self.leave(caller, channel)
                self.changed.notify_all()
            channel.close()

    def close(self) -> None:
        """End every connection; threads that wait give up."""
        with self.changed:
            self._is_open = False
            channels = list(self._channels.values())
            self.changed.notify_all()
        for channel in channels:
            channel.close()

    def seat(self, key: Hashable, channel: Channel) -> None:
        """With the lock held: from now on `key` has this connection, and no longer an older one."""
        before = self._channels.get(key)
        if before is not None:
            before.close()
        self._channels[key] = channel

    def check_open(self) -> None:
        """With the lock held, before and while waiting: whether there is still anybody to answer."""
        if self.failure is not None:
            raise RefusedError(f"the server failed: {type(self.failure).__name__}: {self.failure}")
        if not self._is_open:
            raise ConnectionAbortedError("the server is closing")

    def refuse(self, channel: Channel, reason: str) -> None:
        """Say why this connection ends."""
        # There may be nobody left to hear it.
        with contextlib.suppress(OSError):
            channel.send(Kind.REFUSAL, {"reason": reason})

    def fail(self, error: BaseException) -> None:
        """The server cannot go on: whoever waits is told."""
        with self.changed:
            self.failure = self.failure or error
            self.changed.notify_all()

    def _respond(self, channel: Channel, caller: Caller, message: Message) -> None:
        try:
            fields, vectors = self.answer(caller, message)
        except RefusedError as reason:
            # The request is refused, not the caller: it may ask again.
            channel.send(Kind.REFUSAL, {"reason": str(reason)})
            return
        channel.send(Kind.ANSWER, fields, [raw_bytes(vector) for vector in vectors])
