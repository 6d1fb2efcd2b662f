"""Gradients as bytes and back: uncompressed, or through the codecs of a compression.

The two protocols below are all that a parameter server requires of a compression.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from sandtable.errors import MethodError
from sandtable.methods.server.message import MalformedError, ServerMessage
from sandtable.methods.server.shard import Gradient, raw_bytes
from sandtable.methods.server.shard_plan import ShardPart

__all__ = ["CodecSettings", "Decoder", "Encoder", "expected_bytes", "limit_bytes", "lossy"]

_CPU = torch.device("cpu")


class VectorCodec(Protocol):
    """One vector's codec: a message is a self-contained 1-D uint8 tensor."""

    def encode(self, vector: Tensor) -> Tensor: ...

    def decode(self, message: Tensor, out: Tensor) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> None: ...


class CodecSettings(Protocol):
    """A compression that can be a message to a server."""

    def message_bytes(self, num_elements: int, dtype: torch.dtype) -> float: ...

    def codec(self, num_elements: int, dtype: torch.dtype, device: torch.device, seed: int = 0) -> VectorCodec: ...


class Encoder:
    """The worker's side, for one shard: one codec per vector, which keeps what it did not send (error feedback)."""

    def __init__(
        self,
        parts: Sequence[ShardPart],
        compression: CodecSettings | None,
        devices: Sequence[torch.device],
        seed: int,
    ) -> None:
        self.codecs = [
            None if compression is None else _make(compression, part, device, seed)
            for part, device in zip(parts, devices, strict=True)
        ]

    def encode(self, vectors: Sequence[Tensor]) -> list[memoryview]:
        """Return one run of bytes per vector; for a CPU vector without a codec, its own memory."""
        return [
            raw_bytes((vector if codec is None else codec.encode(vector)).cpu())
            for vector, codec in zip(vectors, self.codecs, strict=True)
        ]


class Decoder:
    """The server's side: stateless, since messages are self-contained."""

    def __init__(self, parts: Sequence[ShardPart], compression: CodecSettings | None) -> None:
        self._parts = parts
        self._num_slices = sum(len(part.slices) for part in parts)
        self._has_residuals = compression is not None and getattr(compression, "keeps_zeros", True)
        self._codecs = [None if compression is None else _make(compression, part, _CPU, 0) for part in parts]

    def decode(self, message: ServerMessage) -> Gradient:
        """Return the gradient of a push, checked. Uncompressed vectors are the message's own memory."""
        lengths, absent = message.integers("lengths"), message.integers("absent")
        if len(lengths) != len(self._parts) or sum(lengths) != message.payload.nbytes:
            raise MalformedError(
                f"a push must have {len(self._parts)} runs that fill {message.payload.nbytes} bytes, but has {lengths}"
            )
        if any(number >= self._num_slices for number in absent):
            raise MalformedError(f"absent gradients must be of {self._num_slices} slices, but are {absent}")
        vectors, offset = [], 0
        for part, codec, length in zip(self._parts, self._codecs, lengths, strict=True):
            vectors.append(_decode(part, codec, message.payload[offset : offset + length]))
            offset += length
        if absent and self._has_residuals:
            absent = self._really_absent(vectors, absent)
        return Gradient(vectors, frozenset(absent))

    def _really_absent(self, vectors: Sequence[Tensor], absent: Sequence[int]) -> list[int]:
        """Return `absent` without the slices for which the push carries something: earlier residuals."""
        views: list[Tensor] = []
        for part, vector in zip(self._parts, vectors, strict=True):
            views += torch.split(vector, [parameter_slice.num_elements for parameter_slice in part.slices])
        return [number for number in absent if not views[number].any()]


def lossy(compression: CodecSettings | None) -> CodecSettings | None:
    """Return the compression, or None if it is lossless: then vectors are sent without a copy."""
    return None if getattr(compression, "is_lossless", False) else compression


def expected_bytes(parts: Sequence[ShardPart], compression: CodecSettings | None) -> float:
    """Compute the length of a push of these parts, without header; on average, where it depends on the values."""
    if compression is None:
        return sum(part.num_bytes for part in parts)
    return sum(compression.message_bytes(part.num_elements, part.dtype) for part in parts if part.num_elements)


def limit_bytes(parts: Sequence[ShardPart]) -> int:
    """Return an upper bound of a message about these parts: a code may exceed its input, but not by this much."""
    return 2 * sum(part.num_bytes for part in parts) + (1 << 16)


def _make(compression: CodecSettings, part: ShardPart, device: torch.device, seed: int) -> VectorCodec | None:
    if not hasattr(compression, "codec"):
        raise MethodError(
            f"a compression must make self-contained messages to go to a server, but {compression!r} does not; "
            "use TopK, QSGD, Sign or Half, or exchange=AllReduce()"
        )
    return compression.codec(part.num_elements, part.dtype, device, seed) if part.num_elements else None


def _decode(part: ShardPart, codec: VectorCodec | None, payload: memoryview) -> Tensor:
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
