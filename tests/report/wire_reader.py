"""Reads the protocol-buffer wire format back, independently of what writes it."""

from collections.abc import Iterator

Field = tuple[int, int | bytes]


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at


def fields(message: bytes) -> Iterator[Field]:
    at = 0
    while at < len(message):
        key, at = read_varint(message, at)
        if key & 7 == 0:
            value, at = read_varint(message, at)
            yield key >> 3, value
        else:
            assert key & 7 == 2, "only varints and lengths are used"
            size, at = read_varint(message, at)
            yield key >> 3, message[at : at + size]
            at += size


def messages(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size, at = read_varint(data, at)
        yield data[at : at + size]
        at += size


def packed(content: bytes) -> list[int]:
    values, at = [], 0
    while at < len(content):
        value, at = read_varint(content, at)
        values.append(value)
    return values
