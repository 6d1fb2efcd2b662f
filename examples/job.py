"""One process of a distributed job: its rank, its device, and the rules that a launch must meet.

Every example starts with `job = start()` and ends with `job.finish()`. Nothing here knows how the job was launched,
as long as the launcher sets torchrun's environment (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT).
"""

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """This process's place in the job."""

    rank: int
    world_size: int
    device: torch.device

    def print_loss(self, step: int, loss: float, *, on_rank: int = 0) -> None:
        """Print one line per step, from one rank only. Every rank has read `loss`, so every rank does the same work."""
        if self.rank == on_rank:
            print(f"step {step} loss {loss:.6f}", flush=True)

    def finish(self) -> None:
        """Leave together: a rank that exits early would cut off the others' last messages."""
        dist.barrier()
        dist.destroy_process_group()


def start() -> Job:
    """Join the job: NCCL on GPUs, gloo on CPUs."""
    device = own_device()
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return Job(rank=dist.get_rank(), world_size=dist.get_world_size(), device=device)


def own_device() -> torch.device:
    """Return this process's GPU, or the CPU if there is none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


def require_divides(divisor: int, total: int, *, names: tuple[str, str]) -> None:
    """Raise unless `divisor` divides `total`; the error suggests values near it that would."""
    if divisor >= 1 and total % divisor == 0:
        return
    valid = [n for n in range(1, total + 1) if total % n == 0]
    nearest = sorted(sorted(valid, key=lambda n: abs(n - divisor))[:4])
    raise ValueError(f"{names[0]} ({divisor}) must divide {names[1]} ({total}); try {', '.join(map(str, nearest))}")
