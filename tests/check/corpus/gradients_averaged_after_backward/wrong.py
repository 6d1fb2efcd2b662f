# rule: unoverlapped-buckets
# source: own
# ranks: 4
"""Data parallel training by hand: average all gradients after the backward pass."""

import os

import torch
import torch.distributed as dist
from torch import nn


def average_gradients(model):
    size = float(dist.get_world_size())
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)  # <-- here
        parameter.grad /= size


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(1234)
    with torch.device("cuda"):
        model = nn.Sequential(*(nn.Sequential(nn.Linear(3072, 3072), nn.GELU()) for _ in range(10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(dist.get_rank())
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(torch.randn(4096, 3072, device="cuda")).abs().mean()
        loss.backward()
        average_gradients(model)
        optimizer.step()


main()
