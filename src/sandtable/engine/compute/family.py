"""Families: operators with the same bottleneck share a cost formula.

Each family is one class in one file: it names its operators and computes how long one of them keeps the device busy.
Times are for a device working alone, from the first thread of the first kernel to the last of the last.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

from sandtable.cluster.device import Device
from sandtable.trace.movement import bytes_moved
from sandtable.trace.signature import Signature

__all__ = ["Basis", "Cost", "Family", "names", "slower_of"]

_RIDGE_POWER = 4

Basis = Literal["measured", "fitted", "nominal"]
"""What a number rests on: a measurement, a fit to published times, or data sheets and usual figures."""


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
    """Names without overload and without the `_` of the in-place variant."""

    follows_bytes: ClassVar[bool] = False
    """Whether time follows bytes, so that it may be interpolated between two measured sizes."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.streaming = device.efficiency.streaming

    @abstractmethod
    def work_ns(self, signature: Signature) -> float:
        """Return how long the device is busy with the operator."""

    def traffic_bytes(self, signature: Signature) -> int:
        """Return the bytes that must at least be read and written."""
        return sum(bytes_moved(signature))

    def basis(self, signature: Signature) -> Basis:
        """Return what the numbers used for this operator rest on."""
        return cast(Basis, self.streaming.status)

    def memory_ns(self, num_bytes: float, share: float) -> float:
        """Return the time of `num_bytes` at `share` of the memory bandwidth."""
        return num_bytes * 1e9 / (self.device.memory_bandwidth_bytes_per_s * share)


def names(text: str, *, library: str = "aten") -> frozenset[str]:
    """Return the operators in a text, separated by blanks."""
    return frozenset(f"{library}::{name}" for name in text.split())


def slower_of(a: float, b: float) -> float:
    """Return the longer of two times that overlap, and a little more where they are close."""
    larger, smaller = max(a, b), min(a, b)
    return larger * (1 + (smaller / larger) ** _RIDGE_POWER) ** (1 / _RIDGE_POWER) if larger else 0.0
