"""Layout: which slice of a parameter a rank holds, and how the slices make the whole again."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sandtable.errors import MethodError
from sandtable.methods.tensor.group import TensorGroup

__all__ = ["Layout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Split along `dim`. A fused tensor has `parts` that are each split: of [q k v] a rank gets its share of each."""

    dim: int
    parts: int = 1

    def take(self, whole: Tensor, group: TensorGroup, what: str) -> Tensor:
        """This rank's slice: a tensor of its own. `what` names the tensor in the refusal of an uneven split."""
        count, remainder = divmod(whole.size(self.dim), self.parts)
        if remainder:
            raise MethodError(
                f"the number of parts ({self.parts}) must divide {what}, but got {whole.size(self.dim)}; "
                "give Column the number of matrices that are fused in it"
            )
        group.check_divides(count, what)
        dealt = torch.unflatten(whole, self.dim, (self.parts, group.size, -1))
        return dealt.select(self.dim + 1, group.rank).flatten(self.dim, self.dim + 1).clone()

    def parameter(self, whole: Tensor, group: TensorGroup, what: str) -> nn.Parameter:
        """The slice as a parameter of its own."""
        return nn.Parameter(self.take(whole.detach(), group, what), requires_grad=whole.requires_grad)

    def join(self, shares: Sequence[Tensor]) -> Tensor:
        """The whole, from the slices of all ranks in their order."""
        dealt = [torch.unflatten(share, self.dim, (self.parts, -1)) for share in shares]
        return torch.cat(dealt, dim=self.dim + 1).flatten(self.dim, self.dim + 1)
