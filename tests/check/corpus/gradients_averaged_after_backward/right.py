"""Data parallel training by hand: average all gradients after the backward pass."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(1234)
    with torch.device("cuda"):
        model = nn.Sequential(*(nn.Sequential(nn.Linear(3072, 3072), nn.GELU()) for _ in range(10)))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(dist.get_rank())
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(torch.randn(4096, 3072, device="cuda")).abs().mean()
        loss.backward()
        optimizer.step()


main()
