"""Wire: the few parts of the protocol-buffer format that a Chakra trace needs, written by hand.

A message is a sequence of fields. A field is its number and wire type in one varint (`number << 3 | type`), then a
varint (type 0) or a length and that many bytes (type 2). These lines weigh less than a dependency on protobuf and a
generated module, which would tie the installation to a version of both.
"""

from collections.abc import Iterable

__all__ = ["bytes_field", "delimited", "integer_field", "packed_field", "text_field", "varint"]

_VARINT, _BYTES = 0, 2


def varint(value: int) -> bytes:
    """Encode an integer with seven bits per byte, lowest first; the top bit marks that more follow."""
    value &= (1 << 64) - 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def integer_field(number: int, value: int) -> bytes:
    """Encode an integer, enum or bool."""
    return varint(number << 3 | _VARINT) + varint(value)


def bytes_field(number: int, content: bytes) -> bytes:
    """Encode bytes, or a message inside a message."""
    return varint(number << 3 | _BYTES) + varint(len(content)) + content


def text_field(number: int, text: str) -> bytes:
    """Encode text as UTF-8."""
    return bytes_field(number, text.encode())


def packed_field(number: int, values: Iterable[int]) -> bytes:
    """Encode a repeated integer; no values give no bytes."""
    content = b"".join(map(varint, values))
    return bytes_field(number, content) if content else b""


def delimited(message: bytes) -> bytes:
    """Encode a message in a stream of messages: its length, then itself."""
    return varint(len(message)) + message
