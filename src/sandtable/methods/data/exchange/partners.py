"""Partners: who talks to whom in which turn, and with what weight."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

__all__ = ["FixedPartners", "Partners", "RotatingPartners"]


class Partners(ABC):
    """A mixing matrix for every turn; turns repeat after `num_turns`."""

    num_ranks: int
    num_turns: int

    @abstractmethod
    def sources(self, rank: int, turn: int) -> dict[int, float]:
        """Return whose vectors enter that of `rank`, with their weights, excluding its own."""

    def targets(self, rank: int, turn: int) -> list[int]:
        """Return whom `rank` sends to: with symmetric partners, those it receives from."""
        return list(self.sources(rank, turn))

    def own_weight(self, rank: int, turn: int) -> float:
        return 1 - sum(self.sources(rank, turn).values())

    def matrix(self, turn: int) -> Tensor:
        """Return the doubly stochastic matrix of that turn."""
        table = torch.zeros(self.num_ranks, self.num_ranks, dtype=torch.float64)
        for rank in range(self.num_ranks):
            table[rank, rank] = self.own_weight(rank, turn)
            for peer, weight in self.sources(rank, turn).items():
                table[rank, peer] = weight
        return table


class RotatingPartners(Partners):
    """Ranks at distance s on both sides; s = 1, 2, 3 ... P//2, or 1, 2, 4 ... up to P//2, and again."""

    def __init__(self, num_ranks: int, *, powers_of_two: bool = False) -> None:
        distances = list(range(1, num_ranks // 2 + 1))
        if powers_of_two:
            distances = [distance for distance in distances if distance & (distance - 1) == 0]
        self.num_ranks = num_ranks
        self.num_turns = max(len(distances), 1)
        self._distances = distances

    def sources(self, rank: int, turn: int) -> dict[int, float]:
        if not self._distances:
            return {}
        distance = self._distances[turn % self.num_turns]
        peers = {(rank + distance) % self.num_ranks, (rank - distance) % self.num_ranks}
        return dict.fromkeys(sorted(peers), 1 / (len(peers) + 1))


class FixedPartners(Partners):
    """Those with a weight in a given matrix, in every turn."""

    def __init__(self, matrix: tuple[tuple[float, ...], ...]) -> None:
        self.num_ranks = len(matrix)
        self.num_turns = 1
        self._matrix = matrix

    @property
    def is_symmetric(self) -> bool:
        table = self.matrix(0)
        return torch.allclose(table, table.T)

    def sources(self, rank: int, turn: int) -> dict[int, float]:
        return {peer: weight for peer, weight in enumerate(self._matrix[rank]) if weight > 0 and peer != rank}

    def targets(self, rank: int, turn: int) -> list[int]:
        return [peer for peer in range(self.num_ranks) if peer != rank and self._matrix[peer][rank] > 0]
