"""Gossip: each rank talks to a few others, and news spreads over time.

With rotating partners (GossipGraD, Daily et al. 2018), in the turn of distance s rank i talks to (i+s) mod P and
(i-s) mod P and takes the mean of the three; s goes 1, 2, ... P//2 and begins again. Where both are the same rank, it
takes the mean of two. In general, a doubly stochastic matrix K gives the weight of j in i: x_i ← Σ_j K_ij x_j. Rows
sum to 1, so that equal vectors stay equal; columns too, so that the mean of all ranks is conserved. Disagreement
shrinks each turn by at least the square of K's second largest singular value.

Compressed, the vector is mixed as K_ii·x_i + Σ_j K_ij·(what j sent): a rank's own in full, and of its neighbours only
what was sent (the rest waits in their error feedback). For weights see `pairwise.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sandtable.errors import MethodError
from sandtable.methods.data.exchange.exchange import Exchange, ExchangeCost, Mixer, VectorSpec
from sandtable.methods.data.exchange.pairwise import PairwiseMixer, check_never_overshoots
from sandtable.methods.data.exchange.partners import FixedPartners, Partners, RotatingPartners
from sandtable.methods.transport.vectors import Vector
from sandtable.methods.transport.wire import Wire

__all__ = ["Gossip"]

_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Gossip(Exchange):
    """A mixture with few partners: rotating ones, or those of a doubly stochastic `matrix` (rows of a P×P table).

    Cost: 2 messages of the vector's (compressed) size, whatever the number of ranks; 1 if both partners are the same.
    """

    matrix: tuple[tuple[float, ...], ...] | None = None

    def __init__(self, matrix: Sequence[Sequence[float]] | torch.Tensor | None = None) -> None:
        rows = None if matrix is None else tuple(tuple(float(value) for value in row) for row in matrix)
        object.__setattr__(self, "matrix", rows)
        if rows is not None:
            _check_matrix(rows)

    def check(self, num_ranks: int) -> None:
        if self.matrix is not None and len(self.matrix) != num_ranks:
            raise MethodError(
                f"the matrix of Gossip must have a row for each of the {num_ranks} ranks, but has {len(self.matrix)}; "
                f"give a {num_ranks}x{num_ranks} matrix, or none for rotating partners"
            )

    def partners(self, num_ranks: int) -> Partners:
        """Return who talks to whom in which turn."""
        self.check(num_ranks)
        return RotatingPartners(num_ranks) if self.matrix is None else FixedPartners(self.matrix)

    def mixer(self, wire: Wire, spec: VectorSpec) -> Mixer:
        partners = self.partners(wire.size)
        return _Compressed(wire, spec, partners) if spec.is_compressed else _Plain(wire, partners)

    def weight_mixer(self, wire: Wire, spec: VectorSpec) -> Mixer:
        if not spec.is_compressed:
            return self.mixer(wire, spec)
        self.check_weights(spec)
        if self.matrix is None:
            return PairwiseMixer(wire, spec, RotatingPartners(wire.size, powers_of_two=True))
        return PairwiseMixer(wire, spec, self.partners(wire.size))

    def check_weights(self, spec: VectorSpec) -> None:
        if not spec.is_compressed:
            return
        if self.matrix is not None and not FixedPartners(self.matrix).is_symmetric:
            raise MethodError(
                "compressed weights need a symmetric mixing matrix, since neighbours track what they sent each other, "
                "but this one is not; give a symmetric matrix, or exchange gradients with BulkSynchronous()"
            )
        check_never_overshoots(spec)

    def cost(self, num_ranks: int, spec: VectorSpec) -> ExchangeCost:
        # A rank encodes once for all partners and decodes once per partner.
        return self._cost(num_ranks, spec, self.partners(num_ranks), lambda messages: 1 + messages)

    def weight_cost(self, num_ranks: int, spec: VectorSpec) -> ExchangeCost:
        if not spec.is_compressed or self.matrix is not None:
            return self.cost(num_ranks, spec)
        # Per partner, a rank encodes and decodes its own difference, and decodes the partner's.
        partners = RotatingPartners(num_ranks, powers_of_two=True)
        return self._cost(num_ranks, spec, partners, lambda messages: 3 * messages)

    def _cost(
        self, num_ranks: int, spec: VectorSpec, partners: Partners, coded: Callable[[float], float]
    ) -> ExchangeCost:
        turns = range(partners.num_turns)
        messages = sum(len(partners.targets(rank, turn)) for rank in range(num_ranks) for turn in turns)
        messages_per_turn = messages / (num_ranks * len(turns))
        size = spec.compression.message_bytes(spec.num_elements, spec.dtype)
        return ExchangeCost(
            rounds=min(num_ranks - 1, 1),
            messages=messages_per_turn,
            sent_bytes=messages_per_turn * size,
            coded_elements=coded(messages_per_turn) * spec.num_elements if spec.is_compressed else 0.0,
        )


class _Plain(Mixer):
    """Uncompressed: whole vectors go to the partners."""

    def __init__(self, wire: Wire, partners: Partners) -> None:
        self._wire = wire
        self._partners = partners

    def mix(self, vector: Vector, *, turn: int) -> None:
        rank = self._wire.rank
        sources = self._partners.sources(rank, turn)
        arrived = {peer: torch.empty_like(vector.data) for peer in sources}
        self._wire.exchange(dict.fromkeys(self._partners.targets(rank, turn), vector.data), arrived)
        vector.data.mul_(self._partners.own_weight(rank, turn))
        for peer, weight in sources.items():
            vector.data.add_(arrived[peer], alpha=weight)
        vector.flag_received()


class _Compressed(Mixer):
    """One message for all partners."""

    def __init__(self, wire: Wire, spec: VectorSpec, partners: Partners) -> None:
        self._wire = wire
        self._spec = spec
        self._partners = partners
        self._codec = spec.compression.codec(spec.num_elements, spec.dtype, spec.device, seed=spec.seed + wire.rank)

    def mix(self, vector: Vector, *, turn: int) -> None:
        rank = self._wire.rank
        sources = self._partners.sources(rank, turn)
        message = self._codec.encode(vector.data)
        outgoing = dict.fromkeys(self._partners.targets(rank, turn), message)
        arrived = self._wire.exchange_messages(outgoing, list(sources), capacity_bytes=self._spec.capacity_bytes)
        vector.data.mul_(self._partners.own_weight(rank, turn))
        for peer, weight in sources.items():
            self._codec.add(arrived[peer], vector.data, weight)
        vector.flag_received()

    def state_dict(self) -> dict[str, Any]:
        return self._codec.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._codec.load_state_dict(state)


def _check_matrix(rows: tuple[tuple[float, ...], ...]) -> None:
    size = len(rows)
    if any(len(row) != size for row in rows):
        raise MethodError(f"the matrix of Gossip must be square, but {size} rows have {sorted(map(len, rows))} columns")
    if not all(value >= 0 for row in rows for value in row):
        raise MethodError("the matrix of Gossip must have weights of 0 or more; spread the rest over the other ranks")
    sums = [sum(row) for row in rows] + [sum(column) for column in zip(*rows, strict=True)]
    worst = max(sums, key=lambda value: abs(value - 1), default=1.0)
    if abs(worst - 1) > _TOLERANCE:
        raise MethodError(
            f"the matrix of Gossip must be doubly stochastic, but a row or column sums to {worst:g}; "
            "divide weights so that every row and every column sums to 1 (a symmetric matrix needs rows only)"
        )
