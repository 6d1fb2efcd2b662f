"""Started by torchrun."""

import os

import torch
import torch.distributed as dist
from torch import nn


def train(local_rank):
    torch.cuda.set_device(local_rank)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(16, 16).cuda(), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(4, 16).cuda()).sum().backward()
        optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("nccl")
    train(int(os.environ["LOCAL_RANK"]))
