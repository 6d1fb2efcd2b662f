"""What is sent: the two small bases of every compression.

A letter and a shorthand. The `Compression` is the choice of shorthand, made once and the same for everybody: a few
settings. A `Codec` is one clerk's desk: it writes the messages of one vector on one rank, and keeps there what a
message could not say (the residual), to say it later.

Devices: the packing is done by the host's processor. A vector on another device is carried over and the message back,
so that it can go out with that device's own library (NCCL).

Numbers: any floating dtype. Vectors are worked on as float32 (float64 only where values are sent as they are).
NaN and infinity are refused by every lossy codec, for one of them would spoil the scale of its neighbours, or the
residual for ever; `NoCompression` and `Half(error_feedback=False)` pass them on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from sandtable.errors import MethodError
from sandtable.methods.compression import kernels

__all__ = ["Codec", "Compression", "finite", "require"]

_MOST_ELEMENTS = 2**32 - 1


class Compression(ABC):
    """Settings of one way to write a vector shorter: frozen, comparable, printable."""

    is_sparse: ClassVar[bool] = False
    """Only some components are sent; the others are not touched by `add`."""
    is_lossless: ClassVar[bool] = False
    """`decode` gives back exactly what `encode` was given."""
    keeps_zeros: ClassVar[bool] = True
    """A component that is zero, and has no residual, is zero for whoever reads the message."""

    @property
    def sum_dtype(self) -> torch.dtype | None:
        """What messages are made of, if they are plain numbers that can be added up on the way."""
        return None

    def codec(self, num_elements: int, dtype: torch.dtype, device: torch.device | str = "cpu", seed: int = 0) -> Codec:
        """The codec of one vector on one rank. Ranks may give different seeds: a message needs none to be read."""
        require(dtype.is_floating_point, f"vectors must be of a floating dtype, but this one is {dtype}")
        require(
            0 <= num_elements <= _MOST_ELEMENTS,
            f"a vector must have 0 to {_MOST_ELEMENTS} components, but this one has {num_elements}; split it",
        )
        return self._codec(num_elements, dtype, torch.device(device), seed)

    def __repr__(self) -> str:
        """As one would write it: the first setting, and those that are not the default."""
        settings = fields(self)  # type: ignore[arg-type]
        ordered = [each for each in settings if not each.kw_only] + [each for each in settings if each.kw_only]
        words: list[str] = []
        for place, field in enumerate(ordered):
            value = getattr(self, field.name)
            if place == 0 and not field.kw_only and value is not None:
                words.append(repr(value))
            elif value != field.default:
                words.append(f"{field.name}={value!r}")
        return f"{type(self).__name__}({', '.join(words)})"

    @abstractmethod
    def message_bytes(self, num_elements: int, dtype: torch.dtype) -> float:
        """Length of a message: exact, or expected where it depends on the values."""

    @abstractmethod
    def _codec(self, num_elements: int, dtype: torch.dtype, device: torch.device, seed: int) -> Codec: ...


class Codec(ABC):
    """Writes and reads the messages of one vector, on one rank."""

    def __init__(self, num_elements: int, dtype: torch.dtype, device: torch.device) -> None:
        self.num_elements = num_elements
        self.dtype = dtype
        self.device = device

    @property
    def fixed_bytes(self) -> int | None:
        """The length of every message, or None where it depends on the values or on the step."""
        return None

    def encode(self, vector: Tensor) -> Tensor:
        """The message: uint8, 1-D, self-contained, exactly what goes over the wire."""
        self._check(vector, "the vector")
        return self._encode(vector.detach()).to(self.device)

    def decode(self, message: Tensor, out: Tensor) -> None:
        """Overwrite `out` with what the message says; components that it does not name become zero."""
        self._check(out, "out")
        self._decode(self._on_host(message), out.detach(), None)

    def add(self, message: Tensor, out: Tensor, weight: float = 1.0) -> None:
        """out += weight * what the message says; components that it does not name are not touched."""
        self._check(out, "out")
        self._decode(self._on_host(message), out.detach(), weight)

    def state_dict(self) -> dict[str, Any]:
        """What the next messages depend on, beside the vectors."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where `state_dict` was taken."""
        require(not state, f"the state of a {type(self).__name__} must be empty, but it has {sorted(state)}")

    @abstractmethod
    def _encode(self, vector: Tensor) -> Tensor: ...

    @abstractmethod
    def _decode(self, message: Tensor, out: Tensor, weight: float | None) -> None:
        """Overwrite where the weight is None, add otherwise."""

    def _check(self, vector: Tensor, name: str) -> None:
        require(
            vector.dim() == 1 and vector.numel() == self.num_elements,
            f"{name} must be 1-D with {self.num_elements} components, but its shape is {tuple(vector.shape)}; "
            "make a codec for each vector",
        )
        require(vector.is_floating_point(), f"{name} must be of a floating dtype, but it is {vector.dtype}")

    def _on_host(self, message: Tensor) -> Tensor:
        require(
            message.dtype == torch.uint8 and message.dim() == 1,
            f"a message must be 1-D and of uint8, but this one is {message.dtype} of shape {tuple(message.shape)}",
        )
        return message.detach().to("cpu").contiguous()

    def _require_length(self, message: Tensor, num_bytes: int) -> None:
        require(
            message.numel() == num_bytes,
            f"a message of {type(self).__name__} for {self.num_elements} components must have {num_bytes} bytes, "
            f"but this one has {message.numel()}; both sides must use the same compression",
        )


def finite(vector: Tensor) -> Tensor:
    """The vector as float32 on the host, in one piece; refused if a component is NaN or infinite."""
    plain = vector.to("cpu", torch.float32).contiguous()
    place = kernels.first_not_finite(plain)
    require(
        place < 0,
        f"components must be finite to be compressed, but component {place} is {vector[place].item()}; "
        "lower the learning rate, clip, or skip the step (as a gradient scaler does)"
        if place >= 0
        else "",
    )
    return plain


def require(condition: bool, message: str) -> None:
    """Raise MethodError unless the condition holds."""
    if not condition:
        raise MethodError(message)
