"""Regions: parts of a model in which ranks do different work, each with two gates.

                     tensor parallel                         with sequence parallelism
    enter            identity   | backward all-reduce        all-gather     | backward reduce-scatter
    leave            all-reduce | backward identity          reduce-scatter | backward all-gather

With sequence parallelism each rank keeps its share of the tokens between two regions, and an all-reduce becomes its two
halves: the bytes are the same, and activations between regions (norms, dropout, residuals) are not held N times.
"""

import torch
from torch import Tensor

from sandtable.methods.tensor import operators
from sandtable.methods.tensor.dropout import Randomness
from sandtable.methods.tensor.group import TensorGroup

__all__ = ["Region"]


class Region:
    """`sequence_dim`: the dim of the tokens if each rank has its share of them outside; None if all ranks have all."""

    def __init__(self, group: TensorGroup, randomness: Randomness, *, sequence_dim: int | None = None) -> None:
        self.group = group
        self.randomness = randomness
        self.sequence_dim = sequence_dim
        self._outside: Tensor | None = None
        self._inside: Tensor | None = None
        self._state = (0, False)

    def enter(self, tensor: Tensor) -> Tensor:
        """Enter split work; from here on dropout differs between ranks.

        Consecutive layers that read the same tensor (q, k and v; gate and up) enter together, with one exchange.
        """
        state = (tensor._version, torch.is_grad_enabled())
        if self._inside is None or tensor is not self._outside or state != self._state:
            self._outside, self._inside, self._state = tensor, self._enter(tensor), state
        return self._inside

    def end(self) -> None:
        """Release what entered and make dropout equal again; called before the last layer of the region."""
        self._outside = self._inside = None
        # Where tokens are split, ranks differ outside as well.
        if self.sequence_dim is None:
            self.randomness.leave()

    def leave(self, tensor: Tensor) -> Tensor:
        """Leave split work: turn partial sums into what all ranks, or each rank's tokens, need."""
        if self.sequence_dim is None:
            return operators.reduce(tensor, self.group)
        return operators.scatter(tensor, self.group, self.sequence_dim)

    def _enter(self, tensor: Tensor) -> Tensor:
        if self.sequence_dim is None:
            self.randomness.enter(tensor.device)
            return operators.copy(tensor, self.group)
        return operators.gather(tensor, self.group, self.sequence_dim)
