"""Shard layouts: which slice of a parameter a rank holds, and how the slices make the whole again."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sandtable.errors import MethodError
from sandtable.methods.tensor.group import TensorGroup

__all__ = ["ShardLayout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLayout:
    """Split along `dim`. Each of the `parts` of a fused tensor is split: a rank gets its share of q, of k and of v."""

    dim: int
    parts: int = 1

    def __str__(self) -> str:
        return f"dim {self.dim}" if self.parts == 1 else f"dim {self.dim} of each of {self.parts} parts"

    def take(self, whole: Tensor, group: TensorGroup, what: str) -> Tensor:
        """Return this rank's slice as a new tensor. `what` names the tensor in the error of an uneven split."""
        count, remainder = divmod(whole.size(self.dim), self.parts)
        if remainder:
            raise MethodError(
                f"the number of parts ({self.parts}) must divide {what}, but got {whole.size(self.dim)}; "
                "give ColumnSplit the number of matrices fused in it"
            )
        group.check_divides(count, what)
        by_rank = torch.unflatten(whole, self.dim, (self.parts, group.size, -1))
        return by_rank.select(self.dim + 1, group.rank).flatten(self.dim, self.dim + 1).clone()

    def parameter(self, whole: Tensor, group: TensorGroup, what: str) -> nn.Parameter:
        """Return the slice as a new parameter."""
        return nn.Parameter(self.take(whole.detach(), group, what), requires_grad=whole.requires_grad)

    def join(self, shares: Sequence[Tensor]) -> Tensor:
        """Return the whole, from the slices of all ranks in order."""
        by_rank = [torch.unflatten(share, self.dim, (self.parts, -1)) for share in shares]
        return torch.cat(by_rank, dim=self.dim + 1).flatten(self.dim, self.dim + 1)
