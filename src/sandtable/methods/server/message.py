"""Messages between workers and servers, and the channel that carries them.

    "SAND"  kind  0 0 0   header length   payload length   |  header (JSON object)  |  payload (raw bytes)
      4       1     3          4                8

Little-endian. The header is small and readable; gradients and weights are the payload, sent from and received into the
tensors' own memory. Nothing that arrives is ever unpickled, and nothing is allocated for a length above the limit.

Every message raises an audit event, before it is sent and after it has arrived, so that a rehearsal or a measurement
sees what crosses sockets: ("sandtable.message", socket, "send" or "recv", header bytes, payload bytes).
"""

import contextlib
import json
import socket
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

__all__ = ["HEAD_BYTES", "Channel", "Identity", "MalformedError", "MessageKind", "ServerMessage", "configure_socket"]

_HEAD = struct.Struct("<4sB3xIQ")
_MAGIC = b"SAND"
_MAX_HEADER_BYTES = 1 << 20
_SMALL_BYTES = 1 << 16
HEAD_BYTES = _HEAD.size
_PROTOCOL = 1


class MessageKind(IntEnum):
    """What a message requests or answers."""

    HELLO = 1
    JOIN = 2
    PUSH = 3
    PULL = 4
    BARRIER = 5
    DONE = 6
    ANSWER = 7
    REFUSAL = 8
    # For Sandblaster, whose servers carry out a coordinator's requests.
    OPERATE = 9
    KEEP = 10
    KEPT = 11
    RESTORE = 12
    PORTION = 13


class MalformedError(Exception):
    """Bytes that are not a message of this protocol. Their connection can no longer be trusted."""


@dataclass(frozen=True, slots=True)
class ServerMessage:
    """One message. `payload` is valid until the next one is received on its channel."""

    kind: MessageKind
    fields: dict[str, Any]
    payload: memoryview

    def integer(self, name: str, *, default: int | None = None) -> int:
        """Return a whole number from the header, 0 or more."""
        value = self.fields.get(name, default)
        if type(value) is not int or value < 0:
            raise MalformedError(f"{self.kind.name} must have a whole number '{name}', but has {value!r}")
        return value

    def number(self, name: str) -> float:
        value: Any = self.fields.get(name)
        if type(value) not in (int, float) or not value >= 0:
            raise MalformedError(f"{self.kind.name} must have a number '{name}', but has {value!r}")
        return float(value)

    def text(self, name: str) -> str:
        value = self.fields.get(name)
        if type(value) is not str:
            raise MalformedError(f"{self.kind.name} must have a text '{name}', but has {value!r}")
        return value

    def integers(self, name: str) -> list[int]:
        value = self.fields.get(name, [])
        if type(value) is not list or not all(type(entry) is int and entry >= 0 for entry in value):
            raise MalformedError(f"{self.kind.name} must have whole numbers '{name}', but has {value!r}")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a worker and a server must agree on before they exchange numbers."""

    shard: int
    digest: str
    sync: str
    compression: str
    byteorder: str = sys.byteorder
    protocol: int = _PROTOCOL

    def to_fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    def objection(self, hello: ServerMessage) -> str | None:
        """Return how the sender of `hello` differs from this server, or None."""
        for name, ours in self.to_fields().items():
            theirs = hello.fields.get(name)
            if theirs != ours:
                worker = hello.integer("worker")
                return (
                    f"{name} must be the same on workers and servers, but is {theirs} on worker {worker}, {ours} here; "
                    "start both with the same model and settings"
                )
        return None


class Channel:
    """A connected socket that sends, receives and counts messages. One thread uses it at a time.

    `stall_s` is how long it waits, within a message, for the other side to accept or send one more byte.
    """

    def __init__(self, sock: socket.socket, *, limit_bytes: int, stall_s: float) -> None:
        self._socket = sock
        self._limit_bytes = limit_bytes
        self._stall_s = stall_s
        self._buffer = bytearray()
        self.num_sent = 0
        self.num_received = 0
        self.sent_bytes = 0
        self.received_bytes = 0

    def send(self, kind: MessageKind, fields: dict[str, Any], payload: Sequence[memoryview] = ()) -> None:
        header = json.dumps(fields, separators=(",", ":")).encode()
        size = sum(view.nbytes for view in payload)
        opening = _HEAD.pack(_MAGIC, kind, len(header), size) + header
        sys.audit("sandtable.message", self._socket, "send", len(opening), size)
        if size <= _SMALL_BYTES:
            # One packet instead of two.
            self._put(memoryview(b"".join([opening, *payload])))
        else:
            self._put(memoryview(opening))
            for view in payload:
                self._put(view)
        self.num_sent += 1

    def receive(self, *, wait_s: float | None = None, into: memoryview | None = None) -> ServerMessage | None:
        """Return the next message, or None if the peer has closed. Wait `wait_s` for its first byte (None: forever).

        A payload of exactly the size of `into` is received there, any other in the channel's buffer.
        """
        head = bytearray(HEAD_BYTES)
        if not self._take(memoryview(head), first_wait_s=wait_s, may_end=True):
            return None
        magic, kind, header_length, payload_length = _HEAD.unpack(head)
        if magic != _MAGIC or kind not in MessageKind._value2member_map_:
            raise MalformedError(
                f"a message must begin with {_MAGIC!r} and a known kind, but began with {bytes(head)!r}"
            )
        if header_length > _MAX_HEADER_BYTES or payload_length > self._limit_bytes:
            raise MalformedError(
                f"a message may have {_MAX_HEADER_BYTES} bytes of header and {self._limit_bytes} of payload here, "
                f"but {MessageKind(kind).name} announces {header_length} and {payload_length}"
            )
        header = bytearray(header_length)
        self._take(memoryview(header), first_wait_s=self._stall_s)
        payload = self._room(payload_length, into)
        self._take(payload, first_wait_s=self._stall_s)
        self.num_received += 1
        sys.audit("sandtable.message", self._socket, "recv", HEAD_BYTES + header_length, payload_length)
        return ServerMessage(MessageKind(kind), _object(header), payload)

    def close(self) -> None:
        """Close at once; a thread waiting on this channel wakes up."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _room(self, size: int, into: memoryview | None) -> memoryview:
        if into is not None and into.nbytes == size:
            return into
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        return memoryview(self._buffer)[:size]

    def _put(self, view: memoryview) -> None:
        self._socket.settimeout(self._stall_s)
        while view.nbytes:
            sent = self._socket.send(view)
            self.sent_bytes += sent
            view = view[sent:]

    def _take(self, view: memoryview, *, first_wait_s: float | None, may_end: bool = False) -> bool:
        """Fill `view`. Return False if the peer closed before the first byte and `may_end`."""
        filled = 0
        while filled < view.nbytes:
            self._socket.settimeout(first_wait_s if filled == 0 else self._stall_s)
            count = self._socket.recv_into(view[filled:])
            if count == 0:
                if filled == 0 and may_end:
                    return False
                raise ConnectionResetError("the connection closed in the middle of a message")
            filled += count
            self.received_bytes += count
        return True


def configure_socket(sock: socket.socket, *, timeout_s: float) -> None:
    """Send small messages at once, and detect within `timeout_s` that the other machine is gone.

    A process that dies closes its connections, and its peer notices at once. A machine or a cable that dies is silent:
    the kernel then probes an idle connection three times within that time, and gives up on unacknowledged data after
    it. The peer's kernel answers probes, so a peer that computes for an hour does not count as dead.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    quarter_s = max(1, int(timeout_s / 4))
    for name, value in (
        ("TCP_KEEPIDLE", quarter_s),
        ("TCP_KEEPINTVL", quarter_s),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", int(timeout_s * 1000)),
    ):
        # Linux has them all; elsewhere the kernel's own, longer timeouts apply.
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _object(header: bytearray) -> dict[str, Any]:
    try:
        fields = json.loads(header)
    except ValueError:
        raise MalformedError(f"a header must be JSON, but got {bytes(header[:40])!r}") from None
    if type(fields) is not dict:
        raise MalformedError(f"a header must be a JSON object, but got {bytes(header[:40])!r}")
    return fields
