"""Exchange: which ranks communicate, and what becomes of a vector.

An `Exchange` is a setting. It makes a `Mixer` for each flat vector, which keeps what that vector needs between
exchanges: the codec's state, or what neighbours are known to have.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from sandtable.methods.data.compression.compression import Compression
from sandtable.methods.transport.vectors import Vector
from sandtable.methods.transport.wire import Wire

__all__ = ["Exchange", "ExchangeCost", "Mixer", "VectorSpec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeCost:
    """What exchanging costs a rank, on average.

    `rounds` counts messages that must follow each other, each paying the latency; `coded_elements` those that pass
    through a codec, in either direction. `busiest_bytes` go over the link that all others wait for, if one carries
    more than the rest.
    """

    rounds: float
    messages: float
    sent_bytes: float
    coded_elements: float = 0.0
    busiest_bytes: float = 0.0

    @classmethod
    def nothing(cls) -> "ExchangeCost":
        return cls(rounds=0, messages=0, sent_bytes=0)

    def __add__(self, other: "ExchangeCost") -> "ExchangeCost":
        return ExchangeCost(
            rounds=self.rounds + other.rounds,
            messages=self.messages + other.messages,
            sent_bytes=self.sent_bytes + other.sent_bytes,
            coded_elements=self.coded_elements + other.coded_elements,
            busiest_bytes=self.busiest_bytes + other.busiest_bytes,
        )

    def __truediv__(self, steps: int) -> "ExchangeCost":
        """Spread the cost over several steps."""
        return ExchangeCost(
            rounds=self.rounds / steps,
            messages=self.messages / steps,
            sent_bytes=self.sent_bytes / steps,
            coded_elements=self.coded_elements / steps,
            busiest_bytes=self.busiest_bytes / steps,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorSpec:
    """One flat vector as an exchange sees it: its shape, and how it is compressed in transit."""

    num_elements: int
    num_flags: int
    shapes: tuple[torch.Size, ...]
    dtype: torch.dtype
    device: torch.device
    compression: Compression
    seed: int

    @classmethod
    def of(cls, vector: Vector, compression: Compression, *, seed: int) -> "VectorSpec":
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
        """An upper bound of a message: twice the dense vector, and room for the tables of small vectors."""
        return 2 * self.num_elements * self.dtype.itemsize + self.num_flags + 4096


class Mixer(ABC):
    """Mixes one vector with those of other ranks, again and again."""

    def begin(self, vector: Vector) -> None:  # noqa: B027
        """Start, called once when all ranks hold the same vector."""

    @abstractmethod
    def mix(self, vector: Vector, *, turn: int) -> None:
        """Replace the vector with the mean over ranks, or the gossip mixture; `turn` counts exchanges from 0."""

    def start(self, vector: Vector, *, turn: int) -> Callable[[], None]:
        """Begin to mix if that can proceed in the background; return a function that does the rest."""
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
    def mixer(self, wire: Wire, spec: VectorSpec) -> Mixer:
        """Make a mixer for vectors that are new each time: gradients, or how far weights have moved."""

    def weight_mixer(self, wire: Wire, spec: VectorSpec) -> Mixer:
        """Make a mixer for weights, which partners mostly know from the last exchange."""
        return self.mixer(wire, spec)

    @abstractmethod
    def cost(self, num_ranks: int, spec: VectorSpec) -> ExchangeCost:
        """Compute what exchanging such a vector costs."""

    def weight_cost(self, num_ranks: int, spec: VectorSpec) -> ExchangeCost:
        """Compute the cost for a mixer of weights."""
        return self.cost(num_ranks, spec)

    def check_weights(self, spec: VectorSpec) -> None:  # noqa: B027
        """Refuse weights that a mixer of weights cannot carry, on every rank alike."""

    def every_step(self, wire: Wire) -> "tuple[Exchange, Wire] | None":
        """Return the exchange over fast links that averages gradients at every step, however seldom weights are."""
        return None

    def check(self, num_ranks: int) -> None:  # noqa: B027
        """Refuse a number of ranks that this exchange does not support."""
