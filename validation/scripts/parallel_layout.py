"""Who works with whom: the groups of a job that is split over tensor, data and pipeline parallel ranks.

Megatron-LM's order: adjacent ranks share layers (tp), then come replicas (dp), then pipeline stages (pp).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from job import Job, require_divides
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

__all__ = ["Axis", "Layout", "RandomStates"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One dimension of the block of ranks, seen from this rank: its group, and its place in it."""

    group: dist.ProcessGroup
    rank: int
    size: int

    def neighbour(self, step: int) -> int:
        """The global rank `step` places further on, around the ring."""
        return dist.get_global_rank(self.group, (self.rank + step) % self.size)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        return self.rank == self.size - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """This rank's groups. `model` holds one copy of the model; `embedding` the two stages that share the embedding."""

    tp: Axis
    dp: Axis
    pp: Axis
    model: dist.ProcessGroup
    embedding: dist.ProcessGroup | None

    @classmethod
    def make(cls, job: Job, *, tp: int, pp: int) -> "Layout":
        """Split all ranks of the job."""
        require_divides(tp * pp, job.world_size, names=("tp x pp", "world size"))
        shape = (pp, job.world_size // (tp * pp), tp)
        mesh = init_device_mesh(job.device.type, shape, mesh_dim_names=("pp", "dp", "tp"))
        return cls(
            tp=_axis(mesh["tp"]),
            dp=_axis(mesh["dp"]),
            pp=_axis(mesh["pp"]),
            model=mesh["pp", "tp"]._flatten("model").get_group(),
            embedding=_embedding_group(mesh, job.rank) if pp > 1 else None,
        )


def _axis(mesh: DeviceMesh) -> Axis:
    return Axis(group=mesh.get_group(), rank=mesh.get_local_rank(), size=mesh.size())


def _embedding_group(mesh: DeviceMesh, rank: int) -> dist.ProcessGroup | None:
    """The group of the first and the last stage that this rank is in; every rank makes all of them."""
    ends = torch.stack((mesh.mesh[0], mesh.mesh[-1]), dim=-1).view(-1, 2).tolist()
    mine = None
    for pair in ends:
        group = dist.new_group(pair, group_desc="embedding")
        mine = group if rank in pair else mine
    return mine


class RandomStates:
    """Two streams of random numbers: one that all tp ranks share, and inside `own()` one of this rank's own.

    Dropout over what is split must differ between ranks; dropout over what they all hold must not.
    """

    def __init__(self, device: torch.device, *, seed: int, tp_rank: int) -> None:
        self._face = torch.cuda if device.type == "cuda" else torch
        self._face.manual_seed(seed + 2718 + tp_rank)
        self._other = self._face.get_rng_state()
        self._face.manual_seed(seed)

    @contextmanager
    def own(self) -> Iterator[None]:
        """Draw from this rank's stream."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def get(self) -> tuple[Tensor, Tensor]:
        """Both states."""
        return self._face.get_rng_state(), self._other

    def set(self, states: tuple[Tensor, Tensor]) -> None:
        """Go back to where `get` was called."""
        current, self._other = states
        self._face.set_rng_state(current)

    def _swap(self) -> None:
        current = self._face.get_rng_state()
        self._face.set_rng_state(self._other)
        self._other = current
