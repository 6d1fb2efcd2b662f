"""Rank 0 downloads the vocabulary before the others read it, and waits for them where they do not."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def prepare_vocabulary() -> int:
    if dist.get_rank() == 0:
        words = {f"word{number}" for number in range(1000)}
        assert len(words) == 1000
    dist.barrier()
    return 1000


def main() -> None:
    dist.init_process_group(backend="nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    vocabulary = prepare_vocabulary()
    model = DDP(nn.Sequential(nn.Embedding(vocabulary, 32), nn.Flatten(), nn.Linear(32 * 8, 2)).cuda())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(6):
        tokens = torch.randint(vocabulary, (4, 8), device="cuda")
        loss = model(tokens).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
