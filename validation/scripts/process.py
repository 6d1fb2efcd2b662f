"""One process of a data-parallel job, and data whose values do not depend on how the job is split.

The scripts here measure what others have measured, so they train on made-up data: sample n is the same whichever rank
asks for it, and so is element n of a weight. A run on two ranks can therefore be held against a run on one.
"""

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """This process's place in the job."""

    rank: int
    world_size: int
    device: torch.device

    def print_loss(self, step: int, loss: float) -> None:
        """One line a step, from rank 0. Every rank has read `loss`, so every rank does the same work."""
        if self.rank == 0:
            print(f"step {step} loss {loss:.6f}", flush=True)

    def finish(self) -> None:
        """Leave together."""
        dist.barrier()
        dist.destroy_process_group()


def start() -> Process:
    """Join the job that torchrun's environment describes: NCCL on GPUs, gloo on CPUs."""
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    return Process(rank=dist.get_rank(), world_size=dist.get_world_size(), device=device)


@torch.no_grad()
def fill_shards(model: nn.Module, *, std: float = 0.02) -> None:
    """Initial values of a model sharded by FSDP2: of each weight only the rows this rank holds, in place.

    An element is a sine of its number in the whole weight, which has the wanted spread and needs no generator; gains
    of norms (one dimension) are 1.
    """
    for name, param in model.named_parameters():
        assert isinstance(param, DTensor), f"{name} is not sharded"
        local = param.to_local()
        if param.ndim == 1:
            local.fill_(1.0)
            continue
        rows_per_rank = -(-param.shape[0] // param.device_mesh.size())
        first = min(param.device_mesh.get_local_rank() * rows_per_rank, param.shape[0]) * (
            param.numel() // param.shape[0]
        )
        values = torch.arange(first, first + local.numel(), device=local.device, dtype=torch.float32)
        local.copy_(values.mul_(12.9898).sin_().mul_(std * 2**0.5).view(local.shape))


def synthetic_text(*, first: int, count: int, seq_len: int, vocab_size: int) -> tuple[Tensor, Tensor]:
    """Samples `first` .. `first + count` of an endless text, as (tokens, targets): each counts upward by 1, 2 or 3."""
    sample = torch.arange(first, first + count).unsqueeze(1)
    text = (7 * sample + (1 + sample % 3) * torch.arange(seq_len + 1)) % (vocab_size // 8)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()
