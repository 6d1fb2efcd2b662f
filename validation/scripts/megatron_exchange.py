"""What pipeline neighbours say to each other: activations forward, their gradients backward.

All that a rank sends and receives at one point of the schedule goes in one batch. Megatron-LM then waits for the batch
and for the whole device, which is kept here (`synchronize`): a stage's host never runs ahead of a transfer. With
`scatter` every tp rank sends only its share of an activation (they all hold the same) and the receivers gather it over
their faster links (Narayanan et al. 2021, arXiv:2104.04473, section 4.1).
"""

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
from parallel_layout import Axis
from torch import Tensor

__all__ = ["Exchange"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Messages of one shape between the stages of a pipeline."""

    pp: Axis
    tp: Axis
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    scatter: bool = False
    synchronize: bool = True

    def swap(
        self,
        *,
        to_previous: Tensor | None = None,
        to_next: Tensor | None = None,
        from_previous: bool = False,
        from_next: bool = False,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Send and receive at once: (from the previous stage, from the next stage)."""
        received = [self._buffer() if wanted else None for wanted in (from_previous, from_next)]
        previous, following = self.pp.neighbour(-1), self.pp.neighbour(+1)
        wires = (
            (dist.isend, self._share(to_previous), previous),
            (dist.irecv, received[0], previous),
            (dist.isend, self._share(to_next), following),
            (dist.irecv, received[1], following),
        )
        operations = [dist.P2POp(how, x, peer, self.pp.group) for how, x, peer in wires if x is not None]
        if operations:
            for request in dist.batch_isend_irecv(operations):
                request.wait()
            if self.synchronize and self.device.type == "cuda":
                torch.cuda.synchronize()
        first, second = (self._whole(x) for x in received)
        return first, second

    def _buffer(self) -> Tensor:
        if not self.scatter:
            return torch.empty(self.shape, dtype=self.dtype, device=self.device)
        return torch.empty(math.prod(self.shape) // self.tp.size, dtype=self.dtype, device=self.device)

    def _share(self, x: Tensor | None) -> Tensor | None:
        if x is None or not self.scatter:
            return x
        return x.reshape(-1).chunk(self.tp.size)[self.tp.rank]

    def _whole(self, x: Tensor | None) -> Tensor | None:
        if x is not None and self.scatter:
            whole = torch.empty(self.shape, dtype=self.dtype, device=self.device)
            dist.all_gather_single(whole.view(-1), x, group=self.tp.group)
            x = whole
        return None if x is None else x.requires_grad_()
