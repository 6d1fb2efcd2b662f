"""Rank 0 evaluates with the wrapped model in training mode, whose buffers are sent to all ranks."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def evaluate(model: nn.Module) -> float:
    with torch.no_grad():
        return float(model(torch.randn(8, 3, 16, 16, device="cuda")).mean())


dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 10))
model = DDP(network.cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(1 + dist.get_rank())
for epoch in range(3):
    for step in range(3):
        loss = model(torch.randn(8, 3, 16, 16, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        evaluate(model.module.eval())
        model.train()
dist.destroy_process_group()
