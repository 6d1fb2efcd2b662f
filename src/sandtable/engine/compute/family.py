"""Families: operators that are limited by the same thing are costed by the same formula.

Each family is one class in one file: it names its operators and says how long one of them keeps the device busy. The
times are those of the device working alone, from the first thread of the first kernel to the last of the last.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

from sandtable.cluster.device import Device
from sandtable.trace.movement import bytes_moved
from sandtable.trace.signature import Signature

__all__ = ["Basis", "Cost", "Family", "names"]

Basis = Literal["measured", "fitted", "nominal"]
"""What a number rests on: a device's clock, a fit to published times, or data sheets and usual figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one launch costs the device: `work_ns` when nothing else runs on it.

    `flops` is the arithmetic as `trace.flops` counts it, `bytes` the least that must be read and written.
    """

    work_ns: float
    family: str
    basis: Basis
    flops: int
    bytes: int


class Family(ABC):
    """Operators with one cost formula on one device."""

    name: ClassVar[str]
    operators: ClassVar[frozenset[str]]
    """Names without overload and without the `_` of the variant in place."""

    follows_bytes: ClassVar[bool] = False
    """Whether time goes with bytes, so that it may be read off between two measured sizes."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.streaming = device.efficiency.streaming

    @abstractmethod
    def work_ns(self, signature: Signature) -> float:
        """How long the device is busy with it."""

    def traffic_bytes(self, signature: Signature) -> int:
        """Bytes that must at least be read and written."""
        return sum(bytes_moved(signature))

    def basis(self, signature: Signature) -> Basis:
        """What the numbers used for this operator rest on."""
        return cast(Basis, self.streaming.status)

    def memory_ns(self, num_bytes: float, share: float) -> float:
        """The time that `num_bytes` take at `share` of the memory's bandwidth."""
        return num_bytes * 1e9 / (self.device.memory_bandwidth_bytes_per_s * share)


def names(text: str, *, library: str = "aten") -> frozenset[str]:
    """Operators written one after the other."""
    return frozenset(f"{library}::{name}" for name in text.split())
