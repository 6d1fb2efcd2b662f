"""Average the loss over all ranks for the log."""

import os

import torch
import torch.distributed as dist
from torch import nn


def average(number):
    value = torch.tensor([number], device="cuda")
    dist.all_reduce(value)
    return value.item() / dist.get_world_size()


def train(model, optimizer, steps=5):
    for _ in range(steps):
        loss = model(torch.randn(8, 32).cuda()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return average(loss.item())


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(32, 32).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print(average(0.0))
torch.manual_seed(dist.get_rank())
print(train(model, optimizer))
