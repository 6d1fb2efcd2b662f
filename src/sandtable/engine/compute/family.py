"""Families: operators with the same bottleneck share a cost formula.

Each family is one class in one file: it names its operators and computes how long one of them keeps the device busy.
Times are for a device working alone, from the first thread of the first kernel to the last of the last.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, cast

from sandtable.cluster.device import Device
from sandtable.engine.compute.rates import Rate
from sandtable.engine.compute.tiles import TileThroughput
from sandtable.trace.movement import bytes_moved
from sandtable.trace.signature import Signature

__all__ = ["Basis", "Conditions", "Cost", "Family", "names", "slower_of"]

_RIDGE_POWER = 4
_CACHED_SHARE = 0.8
_CACHE_GAIN = 1.5
"""Tensors that fill at most this share of the L2 cache stay in it, and are read and written this much faster."""

_GROUPED = {"16 bits": (0.89, 3100.0), "8 bits": (1.02, 330.0), "8 bits in blocks": (0.66, 10_600.0)}
"""The speed of the best tile of a grouped product relative to that of a plain one, and the ns that a tile costs before
and after: fitted to TensorRT-LLM's experts on H100. A scale for each 128 numbers is work for the ordinary lanes."""

_SCALE_BLOCKS = (32, 128)

Basis = Literal["measured", "fitted", "nominal"]
"""What a number rests on: a measurement, a fit to published times, or data sheets and usual figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The conditions of a measurement: a rehearsal's are those of a long run, a kernel benchmark's are kinder.

    `burst`: some milliseconds of work, before heat and power lower the clocks. `cached`: one kernel again and again on
    the same tensors, which stay in the L2 cache if they fit.
    """

    burst: bool = False
    cached: bool = False


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


SUSTAINED = Conditions()


class Family(ABC):
    """Operators with one cost formula on one device."""

    name: ClassVar[str]
    operators: ClassVar[frozenset[str]]
    """Names without overload and without the `_` of the in-place variant."""

    follows_bytes: ClassVar[bool] = False
    """Whether time follows bytes, so that it may be interpolated between two measured sizes."""

    def __init__(self, device: Device, conditions: Conditions = SUSTAINED) -> None:
        self.device = device
        self.conditions = conditions
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
        if self.conditions.cached and num_bytes <= _CACHED_SHARE * self.device.l2_bytes:
            share *= _CACHE_GAIN
        return num_bytes * 1e9 / (self.device.memory_bandwidth_bytes_per_s * share)

    def product_rate(self, rate: Rate) -> float:
        """Return the operations per second that the inner loop of a good product reaches."""
        table = self.device.efficiency.gemm
        reached = rate.reachable(matrix_share=table.matrix_share, vector_share=table.vector_share)
        if not self.conditions.burst or not rate.on_matrix_units:
            return reached
        return reached * (table.float8_burst_gain if self._is_eight_bit(rate) else table.burst_gain)

    def _is_eight_bit(self, rate: Rate) -> bool:
        return rate.on_matrix_units and rate.peak > self.device.matmul.bfloat16 > 0

    def group_throughput(self, rate: Rate, reached: float, signature: Signature) -> TileThroughput:
        """Return the rates for `grouped_ns`, where a plain product would reach `reached`."""
        kind = "16 bits"
        if self._is_eight_bit(rate):
            kind = "8 bits in blocks" if _has_block_scales(signature) else "8 bits"
        share, tile_ns = _GROUPED[kind]
        return replace(self.tile_throughput(rate, reached * share), tile_ns=tile_ns)

    def tile_throughput(self, rate: Rate, reached: float) -> TileThroughput:
        """Return the rates for `tiled_ns`, with `reached` operations per second in the inner loop."""
        table = self.device.efficiency.gemm
        return TileThroughput(
            num_sms=self.device.num_sms,
            rate=reached,
            on_matrix_units=rate.on_matrix_units,
            is_eight_bit=self._is_eight_bit(rate),
            tile_ns=table.tile_ns,
            small_tile_loss=table.small_tile_loss,
            kernel_ns=self.streaming.kernel_ns,
            bytes_per_ns=self.device.memory_bandwidth_bytes_per_s * self.streaming.elementwise_share / 1e9,
        )


def _has_block_scales(signature: Signature) -> bool:
    """Return whether a tensor of scales comes with the first one: a number for each 32 or 128 of its row."""
    first, *others = signature.inputs
    widths = {-(-first.shape[-1] // block) for block in _SCALE_BLOCKS} if first.shape else set()
    kinds = ("float32", "float8_e8m0fnu")
    return any(spec.dtype in kinds and len(spec.shape) > 1 and spec.shape[-1] in widths for spec in others)


def names(text: str, *, library: str = "aten") -> frozenset[str]:
    """Return the operators in a text, separated by blanks."""
    return frozenset(f"{library}::{name}" for name in text.split())


def slower_of(a: float, b: float) -> float:
    """Return the longer of two times that overlap, and a little more where they are close."""
    larger, smaller = max(a, b), min(a, b)
    return larger * (1 + (smaller / larger) ** _RIDGE_POWER) ** (1 / _RIDGE_POWER) if larger else 0.0
