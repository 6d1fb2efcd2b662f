"""All-reduce: everybody ends with the mean of all.

Uncompressed it is torch's own all-reduce, or the explicit ring of `ring.py`; so it is for numbers of 16 bits, which are
divided by N before, so that no sum can be too large. Other messages cannot be added on the way. Sparse ones go whole to
every other rank, and all add the same messages up in the same order: bytes sent are (N-1)·message instead of
2(N-1)/N·dense, so it pays when a message is shorter than 2/N of the dense vector. Others go by shares
(`by_shares.py`): 2(N-1)/N of a message, so it pays whenever a message is shorter than the vector.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sandtable.errors import MethodError
from sandtable.methods.compression.packing import from_bytes
from sandtable.methods.exchange.by_shares import ByShares, cost_by_shares
from sandtable.methods.exchange.exchange import Cost, Exchange, Line, Mixer
from sandtable.methods.exchange.ring import ring_all_reduce
from sandtable.methods.flat import Vector
from sandtable.methods.wire import Wire

__all__ = ["AllReduce"]

AddUp = Callable[[Wire, Tensor], Callable[[], None]]
"""Begins to sum a tensor over all ranks, in place; what it returns waits for the end."""


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

    def mixer(self, wire: Wire, line: Line) -> Mixer:
        if not line.is_compressed:
            return _Sum(wire, _SUMS[self.algorithm])
        if line.compression.sum_dtype is not None:
            return _NarrowSum(wire, line, _SUMS[self.algorithm])
        if hasattr(line.compression, "reducer"):
            return _Reduced(wire, line, _SUMS[self.algorithm])
        return ByShares(wire, line) if _goes_by_shares(line, wire.size) else _Gathered(wire, line)

    def cost(self, num_ranks: int, line: Line) -> Cost:
        others = num_ranks - 1
        is_factored = hasattr(line.compression, "reducer")
        size = _factor_bytes(line) if is_factored else line.compression.message_bytes(line.num_elements, line.dtype)
        narrow = line.compression.sum_dtype
        if line.is_compressed and narrow is None and not is_factored:
            if _goes_by_shares(line, num_ranks):
                return cost_by_shares(num_ranks, line)
            return Cost(
                rounds=min(others, 1),
                messages=others,
                sent_bytes=others * (size + line.num_flags),
                coded_elements=(1 + num_ranks) * line.num_elements,
            )
        size += line.num_flags * (narrow or line.dtype).itemsize
        # Factors are averaged one after the other, and the flags by themselves.
        times = 2 + (line.num_flags > 0) if is_factored else 1
        messages = 2 * others * times
        return Cost(
            rounds=messages,
            messages=messages,
            sent_bytes=2 * others * size / num_ranks,
            coded_elements=2 * line.num_elements if narrow else 0.0,
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
    """The sum of vectors in 16 bits. What rounding on the way loses is lost, as it is in any sum of such numbers."""

    def __init__(self, wire: Wire, line: Line, add_up: AddUp) -> None:
        assert line.compression.sum_dtype is not None
        self._wire = wire
        self._add_up = add_up
        self._dtype = line.compression.sum_dtype
        self._codec = line.compression.codec(line.num_elements, line.dtype, line.device, seed=line.seed + wire.rank)

    def mix(self, vector: Vector, *, turn: int) -> None:
        self.start(vector, turn=turn)()

    def start(self, vector: Vector, *, turn: int) -> Callable[[], None]:
        message = self._codec.encode(vector.data.div_(self._wire.size))
        whole = torch.cat([from_bytes(message, self._dtype), (vector.flags != 0).to(self._dtype)])
        wait = self._add_up(self._wire, whole)

        def finish() -> None:
            wait()
            vector.whole.copy_(whole)
            vector.use_what_came()

        return finish

    def state_dict(self) -> dict[str, Any]:
        return self._codec.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._codec.load_state_dict(state)


class _Gathered(Mixer):
    """Compressed: all messages to everybody. The flags travel behind the message, a byte each."""

    def __init__(self, wire: Wire, line: Line) -> None:
        self._wire = wire
        self._line = line
        self._codec = line.compression.codec(line.num_elements, line.dtype, line.device, seed=line.seed + wire.rank)

    def mix(self, vector: Vector, *, turn: int) -> None:
        flags = (vector.flags != 0).to(torch.uint8)
        own = torch.cat([self._codec.encode(vector.data), flags])
        vector.whole.zero_()
        weight = 1 / self._wire.size
        for message in self._wire.gather_messages(own, capacity_bytes=self._line.capacity_bytes):
            body = len(message) - self._line.num_flags
            self._codec.add(message[:body], vector.data, weight)
            vector.flags.add_(message[body:])
        if self._line.compression.keeps_zeros:
            vector.use_what_came()

    def state_dict(self) -> dict[str, Any]:
        return self._codec.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._codec.load_state_dict(state)


class _Reduced(Mixer):
    """Compressed to factors that can be averaged (PowerSGD); the reducer says which, and when."""

    def __init__(self, wire: Wire, line: Line, add_up: AddUp) -> None:
        self._wire = wire
        self._add_up = add_up
        reducer: Any = line.compression.reducer  # type: ignore[attr-defined]
        self._reducer = reducer(list(line.shapes), line.dtype, line.device)

    def mix(self, vector: Vector, *, turn: int) -> None:
        self._reducer.reduce(vector.views, self._mean)
        if len(vector.flags):
            self._mean(vector.flags)
            vector.use_what_came()

    def _mean(self, tensor: Tensor) -> None:
        self._add_up(self._wire, tensor)()
        tensor.div_(self._wire.size)

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self._reducer.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._reducer.load_state_dict(state)


def _goes_by_shares(line: Line, num_ranks: int) -> bool:
    """Of two ranks each has to send its whole message anyway."""
    return not line.compression.is_sparse and num_ranks > 2


def _factor_bytes(line: Line) -> float:
    reducer: Any = line.compression.reducer  # type: ignore[attr-defined]
    return float(reducer(list(line.shapes), line.dtype, line.device).message_bytes)


def _ring(wire: Wire, tensor: Tensor) -> Callable[[], None]:
    return partial(ring_all_reduce, wire, tensor)


_SUMS: dict[str, AddUp] = {"native": Wire.begin_all_reduce, "ring": _ring}
