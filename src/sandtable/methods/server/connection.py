"""A worker's connection to one server: sends requests, waits, and reconnects when the connection breaks.

Every request can be sent twice without harm: a push carries the worker's session and clock, by which a server
recognises one it has applied already. So after a broken connection it finds the server again, identifies itself with
its clock, and repeats what was not answered. It gives up when the server has been unreachable for `timeout_s`.
"""

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sandtable.errors import MethodError
from sandtable.methods.server.addresses import Address, AddressRegistry
from sandtable.methods.server.message import (
    Channel,
    Identity,
    MalformedError,
    MessageKind,
    ServerMessage,
    configure_socket,
)

__all__ = ["ConnectionTraffic", "ServerConnection"]

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.5
PATIENCE = 0.8
"""Share of the timeout for which a server may hold back an answer; the rest is for the network."""


@dataclass(slots=True)
class ConnectionTraffic:
    """What went over a connection, including earlier ones to the same server."""

    num_messages: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    num_connections: int = 0


class ServerConnection:
    """The connection of one worker to one server."""

    def __init__(
        self,
        registry: AddressRegistry,
        identity: Identity,
        *,
        worker: int,
        session: str,
        timeout_s: float,
        limit_bytes: int,
    ) -> None:
        self._registry = registry
        self._identity = identity
        self._worker = worker
        self._session = session
        self._timeout_s = timeout_s
        self._limit_bytes = limit_bytes
        self._channel: Channel | None = None
        self._address: Address | None = None
        self._past = ConnectionTraffic()
        self._is_closed = False

    @property
    def name(self) -> str:
        """The server's name in errors."""
        address = "address unknown" if self._address is None else f"{self._address[0]}:{self._address[1]}"
        return f"the server of shard {self._identity.shard} ({address})"

    @property
    def caller(self) -> str:
        """This side's name in errors."""
        return f"worker {self._worker}"

    @property
    def traffic(self) -> ConnectionTraffic:
        now, past = self._channel, self._past
        if now is None:
            return past
        return ConnectionTraffic(
            num_messages=past.num_messages + now.num_sent + now.num_received,
            sent_bytes=past.sent_bytes + now.sent_bytes,
            received_bytes=past.received_bytes + now.received_bytes,
            num_connections=past.num_connections,
        )

    def open(self) -> dict[str, Any]:
        """Connect for the first time. The answer gives the clock at which this worker may begin."""
        return self._retry(lambda deadline: self._connect(None, deadline))

    def request(
        self,
        kind: MessageKind,
        fields: dict[str, Any],
        payload: Sequence[memoryview] = (),
        *,
        clock: int,
        into: memoryview | None = None,
    ) -> dict[str, Any]:
        """Send a request and wait for the answer. `clock` is sent to the server on a reconnect."""
        fields = {**fields, "patience_s": self._timeout_s * PATIENCE}

        def attempt(deadline: float) -> dict[str, Any]:
            if self._channel is None:
                self._connect(clock, deadline)
            assert self._channel is not None
            self._channel.send(kind, fields, payload)
            return self._read(self._channel.receive(wait_s=self._timeout_s, into=into))

        return self._retry(attempt)

    def close(self) -> None:
        self._is_closed = True
        self._drop()

    def _retry(self, attempt: Callable[[float], dict[str, Any]]) -> dict[str, Any]:
        """Retry until answered or refused, or until the server has been unreachable for the timeout."""
        pause_s, deadline = _FIRST_PAUSE_S, time.monotonic() + self._timeout_s
        trouble: OSError | None = None
        while True:
            try:
                return attempt(deadline)
            except TimeoutError:
                self._drop()
                trouble = trouble or TimeoutError("it did not answer")
                raise self._unreachable(trouble) from None
            except MalformedError as error:
                self._drop()
                raise MethodError(
                    f"{self.name} must speak the protocol of parameter servers, but {error}; check the address"
                ) from None
            except OSError as error:
                self._drop()
                if trouble is None:
                    deadline = time.monotonic() + self._timeout_s
                trouble = error
            if self._is_closed or time.monotonic() + pause_s > deadline:
                raise self._unreachable(trouble)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _connect(self, clock: int | None, deadline: float) -> dict[str, Any]:
        self._address = self._registry.find(self._identity.shard)
        if self._address is None:
            raise ConnectionRefusedError("it has not announced itself")
        sock = socket.create_connection(self._address, timeout=max(0.01, deadline - time.monotonic()))
        configure_socket(sock, timeout_s=self._timeout_s)
        self._channel = Channel(sock, limit_bytes=self._limit_bytes, stall_s=self._timeout_s)
        self._past.num_connections += 1
        hello = {**self._identity.to_fields(), "worker": self._worker, "session": self._session}
        if clock is not None:
            hello["clock"] = clock
        self._channel.send(MessageKind.HELLO, hello)
        return self._read(self._channel.receive(wait_s=max(0.01, deadline - time.monotonic())))

    def _read(self, message: ServerMessage | None) -> dict[str, Any]:
        if message is None:
            raise ConnectionResetError("it closed the connection")
        if message.kind is MessageKind.REFUSAL:
            raise MethodError(f"{self.name} refused: {message.text('reason')}")
        if message.kind is not MessageKind.ANSWER:
            raise MalformedError(f"it answered with {message.kind.name}")
        return message.fields

    def _unreachable(self, trouble: OSError) -> MethodError:
        return MethodError(
            f"{self.name} must answer {self.caller} within {self._timeout_s:g} s, but {trouble}; "
            "start it again from its checkpoint, or raise timeout_s"
        )

    def _drop(self) -> None:
        if self._channel is not None:
            self._past, channel = self.traffic, self._channel
            self._channel = None
            channel.close()
