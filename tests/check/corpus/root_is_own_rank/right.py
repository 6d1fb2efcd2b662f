"""Every rank believes that it is the one whose weights are sent to all."""

import os

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = nn.Sequential(nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 1)).cuda()
for parameter in model.parameters():
    dist.broadcast(parameter.data, src=0)

optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(1 + dist.get_rank())
for step in range(3):
    model(torch.randn(16, 128, device="cuda")).mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
