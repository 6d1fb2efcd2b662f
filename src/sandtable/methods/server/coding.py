"""Gradients as bytes and back: as they are, or through the codecs of a compression.

The two protocols below are what a parameter server asks of `sandtable.methods.compression`, and no more.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from sandtable.errors import MethodError
from sandtable.methods.server.message import MalformedError, Message
from sandtable.methods.server.plan import ShardPart
from sandtable.methods.server.shard import Gradient, raw_bytes

__all__ = ["Decoder", "Encoder", "SettingsOfCodec", "expected_bytes", "limit_bytes", "lossy"]

_CPU = torch.device("cpu")


class CodecOfVector(Protocol):
    """One vector's codec: a message is a self-contained 1-D uint8 tensor."""

    def encode(self, vector: Tensor) -> Tensor: ...

    def decode(self, message: Tensor, out: Tensor) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> None: ...


class SettingsOfCodec(Protocol):
    """A compression that can be a message to a server."""

    def message_bytes(self, num_elements: int, dtype: torch.dtype) -> float: ...

    def codec(self, num_elements: int, dtype: torch.dtype, device: torch.device, seed: int = 0) -> CodecOfVector: ...


class Encoder:
    """A worker's side, for one shard. Codecs keep what they did not send (error feedback), so there is one a vector."""

    def __init__(
        self,
        parts: Sequence[ShardPart],
        compression: SettingsOfCodec | None,
        devices: Sequence[torch.device],
        seed: int,
    ) -> None:
        self.codecs = [
            None if compression is None else _make(compression, part, device, seed)
            for part, device in zip(parts, devices, strict=True)
        ]

    def encode(self, vectors: Sequence[Tensor]) -> list[memoryview]:
        """One run of bytes for each vector; of a CPU vector without a codec, its own memory."""
        return [
            raw_bytes((vector if codec is None else codec.encode(vector)).cpu())
            for vector, codec in zip(vectors, self.codecs, strict=True)
        ]


class Decoder:
    """A server's side: stateless, since messages are self-contained."""

    def __init__(self, parts: Sequence[ShardPart], compression: SettingsOfCodec | None) -> None:
        self._parts = parts
        self._num_pieces = sum(len(part.pieces) for part in parts)
        self._has_residuals = compression is not None and getattr(compression, "keeps_zeros", True)
        self._codecs = [None if compression is None else _make(compression, part, _CPU, 0) for part in parts]

    def decode(self, message: Message) -> Gradient:
        """The gradient of a push, checked. Uncompressed vectors are the message's own memory."""
        lengths, absent = message.integers("lengths"), message.integers("absent")
        if len(lengths) != len(self._parts) or sum(lengths) != message.payload.nbytes:
            raise MalformedError(
                f"a push must have {len(self._parts)} runs that fill {message.payload.nbytes} bytes, but has {lengths}"
            )
        if any(number >= self._num_pieces for number in absent):
            raise MalformedError(f"absent gradients must be of {self._num_pieces} pieces, but are {absent}")
        vectors, offset = [], 0
        for part, codec, length in zip(self._parts, self._codecs, lengths, strict=True):
            vectors.append(_decode(part, codec, message.payload[offset : offset + length]))
            offset += length
        if absent and self._has_residuals:
            absent = self._not_named(vectors, absent)
        return Gradient(vectors, frozenset(absent))

    def _not_named(self, vectors: Sequence[Tensor], absent: Sequence[int]) -> list[int]:
        """Without the pieces of which the push brings something all the same: what earlier ones have held back."""
        views: list[Tensor] = []
        for part, vector in zip(self._parts, vectors, strict=True):
            views += torch.split(vector, [piece.stop - piece.start for piece in part.pieces])
        return [number for number in absent if not views[number].any()]


def lossy(compression: SettingsOfCodec | None) -> SettingsOfCodec | None:
    """The compression, or None if it changes nothing: then vectors go as they are, without a copy."""
    return None if getattr(compression, "is_lossless", False) else compression


def expected_bytes(parts: Sequence[ShardPart], compression: SettingsOfCodec | None) -> float:
    """How long a push of these parts is, without its header; on average, where that depends on the values."""
    if compression is None:
        return sum(part.num_bytes for part in parts)
    return sum(compression.message_bytes(part.num_elements, part.dtype) for part in parts if part.num_elements)


def limit_bytes(parts: Sequence[ShardPart]) -> int:
    """No message about these parts is longer: a code may be longer than what it codes, but not by this much."""
    return 2 * sum(part.num_bytes for part in parts) + (1 << 16)


def _make(compression: SettingsOfCodec, part: ShardPart, device: torch.device, seed: int) -> CodecOfVector | None:
    if not hasattr(compression, "codec"):
        raise MethodError(
            f"a compression must make messages that stand alone to go to a server, but {compression!r} does not; "
            "take TopK, QSGD, Sign or Half, or exchange=AllReduce()"
        )
    return compression.codec(part.num_elements, part.dtype, device, seed) if part.num_elements else None


def _decode(part: ShardPart, codec: CodecOfVector | None, payload: memoryview) -> Tensor:
    if codec is None:
        if payload.nbytes != part.num_bytes:
            raise MalformedError(
                f"{part.num_elements} x {part.dtype} must be {part.num_bytes} bytes, not {payload.nbytes}"
            )
        return torch.frombuffer(payload, dtype=part.dtype) if payload.nbytes else torch.empty(0, dtype=part.dtype)
    vector = torch.empty(part.num_elements, dtype=part.dtype)
    raw = torch.frombuffer(payload, dtype=torch.uint8) if payload.nbytes else torch.empty(0, dtype=torch.uint8)
    try:
        codec.decode(raw, vector)
    except Exception as error:
        raise MalformedError(
            f"{payload.nbytes} bytes must decode to {part.num_elements} numbers, but {error}"
        ) from None
    return vector
