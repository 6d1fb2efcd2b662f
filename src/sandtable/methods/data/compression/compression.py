"""The two base classes of every compression.

A `Compression` is a few settings, the same on every rank. A `Codec` writes the messages of one vector on one rank, and
keeps what a message could not carry (the residual) for later ones.

Devices: the host's CPU does the packing. A vector on another device is copied to the host and the message back, so that
it can go out with that device's own library (NCCL).

Numbers: any floating dtype. Vectors are processed as float32 (float64 only where values are sent exactly). Every lossy
codec refuses NaN and infinity, which would spoil the scale of their neighbours, or the residual forever;
`NoCompression` and `Half(error_feedback=False)` pass them on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from sandtable.errors import MethodError
from sandtable.methods.data.compression import kernels

__all__ = ["Codec", "Compression", "finite", "require"]

_MOST_ELEMENTS = 2**32 - 1


class Compression(ABC):
    """Settings of one way to write a vector shorter: frozen, comparable, printable."""

    is_sparse: ClassVar[bool] = False
    """Whether only some components are sent; `add` leaves the others untouched."""
    is_lossless: ClassVar[bool] = False
    """Whether `decode` returns exactly what `encode` was given."""
    keeps_zeros: ClassVar[bool] = True
    """Whether a component that is zero, without a residual, decodes to zero."""

    @property
    def sum_dtype(self) -> torch.dtype | None:
        """The dtype of messages, if they are plain numbers that can be summed in transit."""
        return None

    def codec(self, num_elements: int, dtype: torch.dtype, device: torch.device | str = "cpu", seed: int = 0) -> Codec:
        """Make the codec of one vector on one rank. Ranks may have different seeds: reading a message needs none."""
        require(dtype.is_floating_point, f"vectors must be of a floating dtype, but this one is {dtype}")
        require(
            0 <= num_elements <= _MOST_ELEMENTS,
            f"a vector must have 0 to {_MOST_ELEMENTS} components, but this one has {num_elements}; split it",
        )
        return self._codec(num_elements, dtype, torch.device(device), seed)

    def __repr__(self) -> str:
        """Write it as in source code: the first setting, and those that are not the default."""
        settings = fields(self)  # type: ignore[arg-type]
        ordered = sorted(settings, key=lambda field: field.kw_only is True)
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
        """Compute the length of a message: exact, or expected where it depends on the values."""

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
        """Return the message: uint8, 1-D, self-contained, exactly what goes over the wire."""
        self._check(vector, "the vector")
        return self._encode(vector.detach()).to(self.device)

    def decode(self, message: Tensor, out: Tensor) -> None:
        """Overwrite `out` with the message; components that it does not name become zero."""
        self._check(out, "out")
        self._decode(self._on_host(message), out.detach(), None)

    def add(self, message: Tensor, out: Tensor, weight: float = 1.0) -> None:
        """Add weight * the message to `out`; components that it does not name stay untouched."""
        self._check(out, "out")
        self._decode(self._on_host(message), out.detach(), weight)

    def state_dict(self) -> dict[str, Any]:
        """Return what the next messages depend on besides the vectors."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from `state_dict()`."""
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
    """Return the vector as contiguous float32 on the host; refuse NaN and infinity."""
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
