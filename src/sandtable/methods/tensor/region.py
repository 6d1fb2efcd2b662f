"""Region: the part of a model in which ranks do different work, with its two gates.

                     tensor parallel                         with sequence parallelism
    enter            identity   | backward all-reduce        all-gather     | backward reduce-scatter
    leave            all-reduce | backward identity          reduce-scatter | backward all-gather

With sequence parallelism each rank keeps its share of the tokens between two regions, and an all-reduce becomes its two
halves: the same bytes, and what lies between (norms, dropout, residuals) is not held N times.
"""

import torch
from torch import Tensor

from sandtable.methods.tensor import operators
from sandtable.methods.tensor.dropout import Randomness
from sandtable.methods.tensor.group import TensorGroup

__all__ = ["Region"]


class Region:
    """`sequence_dim`: the dim of the tokens if each rank has its share of them outside, None if all have all."""

    def __init__(self, group: TensorGroup, randomness: Randomness, *, sequence_dim: int | None = None) -> None:
        self.group = group
        self.randomness = randomness
        self.sequence_dim = sequence_dim
        self._outside: Tensor | None = None
        self._inside: Tensor | None = None
        self._state = (0, False)

    def enter(self, tensor: Tensor) -> Tensor:
        """From outside into split work; dropout differs from here on.

        Layers that read the same tensor one after the other (q, k and v; gate and up) enter together: the exchange is
        paid for once.
        """
        state = (tensor._version, torch.is_grad_enabled())
        if self._inside is None or tensor is not self._outside or state != self._state:
            self._outside, self._inside, self._state = tensor, self._enter(tensor), state
        return self._inside

    def end(self) -> None:
        """Before the last linear layer of the region: what entered is let go, dropout is the same again."""
        self._outside = self._inside = None
        # Where tokens are shared out, ranks differ outside as well.
        if self.sequence_dim is None:
            self.randomness.leave()

    def leave(self, tensor: Tensor) -> Tensor:
        """From partial sums to outside."""
        if self.sequence_dim is None:
            return operators.reduce(tensor, self.group)
        return operators.scatter(tensor, self.group, self.sequence_dim)

    def _enter(self, tensor: Tensor) -> Tensor:
        if self.sequence_dim is None:
            self.randomness.enter(tensor.device)
            return operators.copy(tensor, self.group)
        return operators.gather(tensor, self.group, self.sequence_dim)
