"""Exchange: who talks to whom, and what a vector is afterwards.

An `Exchange` is a setting. A `Mixer` is made from it for each flat vector and keeps what that vector needs between
exchanges: the codec's state, or what neighbours are known to have.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from sandtable.methods.compression import Compression
from sandtable.methods.flat import Vector
from sandtable.methods.wire import Wire

__all__ = ["Cost", "Exchange", "Line", "Mixer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What exchanging costs a rank, on average.

    `rounds` are messages that must follow each other, each of which pays the latency; `coded_elements` those that go
    through a codec, in either direction. `busiest_bytes` go over the link that all others wait for, where one carries
    more than the rest.
    """

    rounds: float
    messages: float
    sent_bytes: float
    coded_elements: float = 0.0
    busiest_bytes: float = 0.0

    @classmethod
    def nothing(cls) -> "Cost":
        return cls(rounds=0, messages=0, sent_bytes=0)

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            rounds=self.rounds + other.rounds,
            messages=self.messages + other.messages,
            sent_bytes=self.sent_bytes + other.sent_bytes,
            coded_elements=self.coded_elements + other.coded_elements,
            busiest_bytes=self.busiest_bytes + other.busiest_bytes,
        )

    def __truediv__(self, steps: int) -> "Cost":
        """Spread over several steps."""
        return Cost(
            rounds=self.rounds / steps,
            messages=self.messages / steps,
            sent_bytes=self.sent_bytes / steps,
            coded_elements=self.coded_elements / steps,
            busiest_bytes=self.busiest_bytes / steps,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One flat vector as an exchange sees it: its shape, and how it is compressed on the way."""

    num_elements: int
    num_flags: int
    shapes: tuple[torch.Size, ...]
    dtype: torch.dtype
    device: torch.device
    compression: Compression
    seed: int

    @classmethod
    def of(cls, vector: Vector, compression: Compression, *, seed: int) -> "Line":
        return cls(
            num_elements=vector.num_elements,
            num_flags=len(vector.flags),
            shapes=tuple(vector.shapes),
            dtype=vector.data.dtype,
            device=vector.data.device,
            compression=compression,
            seed=seed,
        )

    @property
    def is_compressed(self) -> bool:
        return not self.compression.is_lossless

    @property
    def capacity_bytes(self) -> int:
        """No message is longer: twice the dense vector, and room for tables of small vectors."""
        return 2 * self.num_elements * self.dtype.itemsize + self.num_flags + 4096


class Mixer(ABC):
    """Mixes one vector with those of other ranks, as often as it is asked to."""

    def begin(self, vector: Vector) -> None:  # noqa: B027
        """Told once, when all ranks hold the same vector."""

    @abstractmethod
    def mix(self, vector: Vector, *, turn: int) -> None:
        """Replace the vector by the mean over ranks, or by the gossip mixture; `turn` counts exchanges from 0."""

    def start(self, vector: Vector, *, turn: int) -> Callable[[], None]:
        """Begin to mix if that can go on by itself; what this returns does the rest."""
        return partial(self.mix, vector, turn=turn)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert not state, "this exchange keeps no state"


class Exchange(ABC):
    """Settings of an exchange."""

    @property
    def reaches_all(self) -> bool:
        """Whether the vector is the same on every rank afterwards."""
        return False

    @abstractmethod
    def mixer(self, wire: Wire, line: Line) -> Mixer:
        """For vectors that are new each time: gradients, or how far weights have moved."""

    def weight_mixer(self, wire: Wire, line: Line) -> Mixer:
        """For weights, of which most is known from the last time."""
        return self.mixer(wire, line)

    @abstractmethod
    def cost(self, num_ranks: int, line: Line) -> Cost:
        """What exchanging that line costs, by formula."""

    def weight_cost(self, num_ranks: int, line: Line) -> Cost:
        """The same for a mixer of weights."""
        return self.cost(num_ranks, line)

    def check_weights(self, line: Line) -> None:  # noqa: B027
        """Refuse weights of that line, on every rank alike, if a mixer of weights cannot carry them."""

    def every_step(self, wire: Wire) -> "tuple[Exchange, Wire] | None":
        """What averages gradients at every step even if weights are averaged seldom: links too fast to spare."""
        return None

    def check(self, num_ranks: int) -> None:  # noqa: B027
        """Refuse a number of ranks this exchange cannot have."""
