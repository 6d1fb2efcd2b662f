"""TensorGroup: the ranks that share every layer, and the collectives between them, counted.

Other methods send through `Wire`, which waits for the device to time an exchange. Here the host must run ahead of the
device, so nothing is timed and nothing is waited for.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sandtable.errors import MethodError
from sandtable.methods.transport.single_tensors import all_gather_single, reduce_scatter_single
from sandtable.methods.transport.wire import Wire

__all__ = ["TensorGroup", "TensorTraffic", "divisors"]


@dataclass(slots=True, kw_only=True)
class TensorTraffic:
    """Collectives and payload bytes by kind: "all-reduce", "all-gather", "reduce-scatter".

    Bytes are what one rank sends in a ring over N ranks, with S the whole buffer: 2(N-1)/N * S for an all-reduce,
    (N-1)/N * S for each of its two halves.
    """

    calls: Counter[str] = field(default_factory=Counter)
    sent_bytes: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, sent_bytes: int) -> None:
        self.calls[kind] += 1
        self.sent_bytes[kind] += sent_bytes

    def reset(self) -> None:
        self.calls.clear()
        self.sent_bytes.clear()


class TensorGroup:
    """One process group, with this rank's `rank` and its `size`. Collectives do not change their arguments."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.wire = Wire(group)
        self.rank = self.wire.rank
        self.size = self.wire.size
        self.traffic = TensorTraffic()

    def __deepcopy__(self, memo: Any) -> "TensorGroup":
        """Return the group itself: a copy of a split model is shared by the same ranks."""
        return self

    def check_divides(self, count: int, what: str, remedy: str = "") -> None:
        """Raise `MethodError` unless `count` can be divided equally among the ranks."""
        if count % self.size:
            remedy = remedy or f"try a group of {_listed(divisors(count))} ranks"
            raise MethodError(
                f"the number of ranks ({self.size}) must divide {what}, but got {count}; {remedy}, or leave it out of "
                "the plan"
            )

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Return the sum over the ranks."""
        return self._all_reduce(tensor, dist.ReduceOp.SUM)

    def all_reduce_max(self, tensor: Tensor) -> Tensor:
        """Return the maximum over the ranks."""
        return self._all_reduce(tensor, dist.ReduceOp.MAX)

    def all_gather(self, tensor: Tensor, dim: int) -> Tensor:
        """Return the ranks' tensors concatenated along `dim`."""
        if self.size == 1:
            return tensor
        share = tensor.movedim(dim, 0).contiguous()
        whole = share.new_empty(share.size(0) * self.size, *share.shape[1:])
        all_gather_single(whole, share, group=self.wire.group)
        self.traffic.add("all-gather", (self.size - 1) * share.nbytes)
        return whole.movedim(0, dim).contiguous()

    def reduce_scatter(self, tensor: Tensor, dim: int) -> Tensor:
        """Return this rank's share along `dim` of the sum over the ranks."""
        if self.size == 1:
            return tensor
        whole = tensor.movedim(dim, 0).contiguous()
        share = whole.new_empty(whole.size(0) // self.size, *whole.shape[1:])
        reduce_scatter_single(share, whole, group=self.wire.group)
        self.traffic.add("reduce-scatter", (self.size - 1) * share.nbytes)
        return share.movedim(0, dim).contiguous()

    def share(self, tensor: Tensor, dim: int) -> Tensor:
        """Return this rank's part of a replicated tensor; nothing is sent."""
        return tensor.chunk(self.size, dim)[self.rank].clone(memory_format=torch.contiguous_format)

    def _all_reduce(self, tensor: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
        if self.size == 1:
            return tensor
        total = tensor.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, operation, group=self.wire.group)
        self.traffic.add("all-reduce", 2 * (self.size - 1) * total.nbytes // self.size)
        return total


def divisors(count: int) -> list[int]:
    return [number for number in range(1, count + 1) if count % number == 0]


def _listed(numbers: list[int]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} or {last}" if first else last
