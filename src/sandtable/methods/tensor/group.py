"""TensorGroup: the ranks that share every layer, and the collectives between them, counted.

The other methods send through `Wire`, which waits for the device to know how long an exchange took. Here a layer waits
for every exchange anyway and the host must run ahead of the device, so nothing is timed and nothing waited for.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sandtable.errors import MethodError
from sandtable.methods.tensor.traffic import Traffic
from sandtable.methods.wire import Wire

__all__ = ["TensorGroup", "divisors"]


class TensorGroup:
    """One process group; `rank` and `size` are this rank's place in it. No collective changes what it is given."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.wire = Wire(group)
        self.rank = self.wire.rank
        self.size = self.wire.size
        self.traffic = Traffic()

    def __deepcopy__(self, memo: Any) -> "TensorGroup":
        """A copy of a split model is shared by the same ranks."""
        return self

    def check_divides(self, count: int, what: str, remedy: str = "") -> None:
        """Refuse to deal `count` things to ranks that would not all get as many."""
        if count % self.size:
            remedy = remedy or f"try a group of {_listed(divisors(count))} ranks"
            raise MethodError(
                f"the number of ranks ({self.size}) must divide {what}, but got {count}; {remedy}, or leave it out of "
                "the plan"
            )

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum over the ranks."""
        return self._all_reduce(tensor, dist.ReduceOp.SUM)

    def all_reduce_largest(self, tensor: Tensor) -> Tensor:
        """The largest over the ranks."""
        return self._all_reduce(tensor, dist.ReduceOp.MAX)

    def all_gather(self, tensor: Tensor, dim: int) -> Tensor:
        """The ranks' tensors, one after the other along `dim`."""
        if self.size == 1:
            return tensor
        share = tensor.movedim(dim, 0).contiguous()
        whole = share.new_empty(share.size(0) * self.size, *share.shape[1:])
        dist.all_gather_single(whole, share, group=self.wire.group)
        self.traffic.add("all-gather", (self.size - 1) * share.nbytes)
        return whole.movedim(0, dim).contiguous()

    def reduce_scatter(self, tensor: Tensor, dim: int) -> Tensor:
        """This rank's share along `dim` of the sum over the ranks."""
        if self.size == 1:
            return tensor
        whole = tensor.movedim(dim, 0).contiguous()
        share = whole.new_empty(whole.size(0) // self.size, *whole.shape[1:])
        dist.reduce_scatter_single(share, whole, group=self.wire.group)
        self.traffic.add("reduce-scatter", (self.size - 1) * share.nbytes)
        return share.movedim(0, dim).contiguous()

    def share(self, tensor: Tensor, dim: int) -> Tensor:
        """This rank's part of a tensor that all have; nothing is sent."""
        return tensor.chunk(self.size, dim)[self.rank].clone(memory_format=torch.contiguous_format)

    def _all_reduce(self, tensor: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
        if self.size == 1:
            return tensor
        total = tensor.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, operation, group=self.wire.group)
        self.traffic.add("all-reduce", 2 * (self.size - 1) * total.nbytes // self.size)
        return total


def divisors(count: int) -> list[int]:
    return [each for each in range(1, count + 1) if count % each == 0]


def _listed(numbers: list[int]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} or {last}" if first else last
