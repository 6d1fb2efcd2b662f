"""The wire between processes: length-prefixed messages of plain values (tuples, strings, bytes, numbers, None).

`marshal` is used for its speed, and because reading it runs no code. Both ends are the same interpreter.
"""

import marshal
import struct
from typing import Any

__all__ = ["MAX_MESSAGE_BYTES", "Frames", "pack"]

MAX_MESSAGE_BYTES = 1 << 17
"""Of a message between launcher and zygote, which go over a socket that keeps them apart."""

_LENGTH = struct.Struct("<I")


def pack(message: tuple[Any, ...]) -> bytes:
    """One message, as it goes over the wire."""
    body = marshal.dumps(message)
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Puts messages together again from the pieces a socket gives."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> list[tuple[Any, ...]]:
        """Adds what was received; the messages that are complete by now."""
        pending = self._pending = self._pending + data if self._pending else data
        messages: list[tuple[Any, ...]] = []
        start = 0
        while len(pending) >= start + _LENGTH.size:
            (length,) = _LENGTH.unpack_from(pending, start)
            end = start + _LENGTH.size + length
            if len(pending) < end:
                break
            messages.append(marshal.loads(pending[start + _LENGTH.size : end]))
            start = end
        self._pending = pending[start:]
        return messages
