"""Gradients are averaged asynchronously, one call per parameter."""

import os

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
torch.manual_seed(dist.get_rank())
for _ in range(4):
    loss = model(torch.randn(32, 256).cuda()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    works = [dist.all_reduce(p.grad, op=dist.ReduceOp.AVG, async_op=True) for p in model.parameters()]
    for work in works:
        work.wait()
    optimizer.step()
