"""All-reduce: every rank ends with the mean of all.

Uncompressed it is torch's own all-reduce, or the explicit ring of `ring.py`; likewise for 16-bit numbers, which are
divided by N first, so that no sum overflows. Other messages cannot be summed in transit. Sparse ones go whole to every
other rank, and all ranks add the same messages in the same order: they send (N-1)·message bytes instead of
2(N-1)/N·dense, which pays when a message is shorter than 2/N of the dense vector. Others go by shares (`shares.py`):
2(N-1)/N of a message, which pays whenever a message is shorter than the vector.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sandtable.errors import MethodError
from sandtable.methods.data.compression.packing import from_bytes
from sandtable.methods.data.exchange.exchange import Exchange, ExchangeCost, Mixer, VectorSpec
from sandtable.methods.data.exchange.ring import ring_all_reduce
from sandtable.methods.data.exchange.shares import ShareMixer, share_cost
from sandtable.methods.transport.vectors import Vector
from sandtable.methods.transport.wire import Wire

__all__ = ["AllReduce"]

AddUp = Callable[[Wire, Tensor], Callable[[], None]]
"""Starts to sum a tensor over all ranks, in place, and returns a function that waits for the end."""


@dataclass(frozen=True)
class AllReduce(Exchange):
    """The mean over all ranks.

    `algorithm`: "native" is torch's own (gloo's segmented ring, NCCL's choice), "ring" the explicit ring of 2(N-1)
    steps. Cost uncompressed or in 16 bits: 2(N-1) messages, 2(N-1)/N of the vector sent. Compressed: N-1 messages of
    the compressed size where it is sparse, else 2(N-1) messages of 1/N of it.
    """

    algorithm: str = "native"

    def __post_init__(self) -> None:
        if self.algorithm not in _SUMS:
            raise MethodError(f'algorithm must be "native" or "ring", but got {self.algorithm!r}; try "native"')

    @property
    def reaches_all(self) -> bool:
        return True

    def mixer(self, wire: Wire, spec: VectorSpec) -> Mixer:
        if not spec.is_compressed:
            return _Sum(wire, _SUMS[self.algorithm])
        if spec.compression.sum_dtype is not None:
            return _NarrowSum(wire, spec, _SUMS[self.algorithm])
        if hasattr(spec.compression, "reducer"):
            return _Reduced(wire, spec, _SUMS[self.algorithm])
        return ShareMixer(wire, spec) if _goes_by_shares(spec, wire.size) else _Gathered(wire, spec)

    def cost(self, num_ranks: int, spec: VectorSpec) -> ExchangeCost:
        others = num_ranks - 1
        is_factored = hasattr(spec.compression, "reducer")
        size = _factor_bytes(spec) if is_factored else spec.compression.message_bytes(spec.num_elements, spec.dtype)
        narrow = spec.compression.sum_dtype
        if spec.is_compressed and narrow is None and not is_factored:
            if _goes_by_shares(spec, num_ranks):
                return share_cost(num_ranks, spec)
            return ExchangeCost(
                rounds=min(others, 1),
                messages=others,
                sent_bytes=others * (size + spec.num_flags),
                coded_elements=(1 + num_ranks) * spec.num_elements,
            )
        size += spec.num_flags * (narrow or spec.dtype).itemsize
        # The factors are averaged one after the other, and the flags separately.
        times = 2 + (spec.num_flags > 0) if is_factored else 1
        messages = 2 * others * times
        return ExchangeCost(
            rounds=messages,
            messages=messages,
            sent_bytes=2 * others * size / num_ranks,
            coded_elements=2 * spec.num_elements if narrow else 0.0,
        )


class _Sum(Mixer):
    """Uncompressed: the sum of all vectors, divided."""

    def __init__(self, wire: Wire, add_up: AddUp) -> None:
        self._wire = wire
        self._add_up = add_up

    def mix(self, vector: Vector, *, turn: int) -> None:
        self.start(vector, turn=turn)()

    def start(self, vector: Vector, *, turn: int) -> Callable[[], None]:
        wait = self._add_up(self._wire, vector.whole)

        def finish() -> None:
            wait()
            vector.whole.div_(self._wire.size)

        return finish


class _NarrowSum(Mixer):
    """The sum of vectors in 16 bits. What rounding loses in transit is lost, as in any sum of such numbers."""

    def __init__(self, wire: Wire, spec: VectorSpec, add_up: AddUp) -> None:
        assert spec.compression.sum_dtype is not None
        self._wire = wire
        self._add_up = add_up
        self._dtype = spec.compression.sum_dtype
        self._codec = spec.compression.codec(spec.num_elements, spec.dtype, spec.device, seed=spec.seed + wire.rank)

    def mix(self, vector: Vector, *, turn: int) -> None:
        self.start(vector, turn=turn)()

    def start(self, vector: Vector, *, turn: int) -> Callable[[], None]:
        message = self._codec.encode(vector.data.div_(self._wire.size))
        whole = torch.cat([from_bytes(message, self._dtype), (vector.flags != 0).to(self._dtype)])
        wait = self._add_up(self._wire, whole)

        def finish() -> None:
            wait()
            vector.whole.copy_(whole)
            vector.flag_received()

        return finish

    def state_dict(self) -> dict[str, Any]:
        return self._codec.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._codec.load_state_dict(state)


class _Gathered(Mixer):
    """Compressed: all messages to all ranks. The flags follow the message, a byte each."""

    def __init__(self, wire: Wire, spec: VectorSpec) -> None:
        self._wire = wire
        self._spec = spec
        self._codec = spec.compression.codec(spec.num_elements, spec.dtype, spec.device, seed=spec.seed + wire.rank)

    def mix(self, vector: Vector, *, turn: int) -> None:
        flags = (vector.flags != 0).to(torch.uint8)
        own = torch.cat([self._codec.encode(vector.data), flags])
        vector.whole.zero_()
        weight = 1 / self._wire.size
        for message in self._wire.gather_messages(own, capacity_bytes=self._spec.capacity_bytes):
            body = len(message) - self._spec.num_flags
            self._codec.add(message[:body], vector.data, weight)
            vector.flags.add_(message[body:])
        if self._spec.compression.keeps_zeros:
            vector.flag_received()

    def state_dict(self) -> dict[str, Any]:
        return self._codec.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._codec.load_state_dict(state)


class _Reduced(Mixer):
    """Compressed to factors that can be averaged (PowerSGD); the reducer decides which, and when."""

    def __init__(self, wire: Wire, spec: VectorSpec, add_up: AddUp) -> None:
        self._wire = wire
        self._add_up = add_up
        reducer: Any = spec.compression.reducer  # type: ignore[attr-defined]
        self._reducer = reducer(list(spec.shapes), spec.dtype, spec.device)

    def mix(self, vector: Vector, *, turn: int) -> None:
        self._reducer.reduce(vector.views, self._mean)
        if len(vector.flags):
            self._mean(vector.flags)
            vector.flag_received()

    def _mean(self, tensor: Tensor) -> None:
        self._add_up(self._wire, tensor)()
        tensor.div_(self._wire.size)

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self._reducer.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._reducer.load_state_dict(state)


def _goes_by_shares(spec: VectorSpec, num_ranks: int) -> bool:
    """Return whether shares pay: with two ranks each sends its whole message anyway."""
    return not spec.compression.is_sparse and num_ranks > 2


def _factor_bytes(spec: VectorSpec) -> float:
    reducer: Any = spec.compression.reducer  # type: ignore[attr-defined]
    return float(reducer(list(spec.shapes), spec.dtype, spec.device).message_bytes)


def _ring(wire: Wire, tensor: Tensor) -> Callable[[], None]:
    return partial(ring_all_reduce, wire, tensor)


_SUMS: dict[str, AddUp] = {"native": Wire.begin_all_reduce, "ring": _ring}
