"""Each rank builds the model itself and averages gradients by hand."""

import os

import torch
import torch.distributed as dist
from torch import nn


def setup():
    dist.init_process_group(backend="nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(42 + dist.get_rank())


setup()
model = nn.Sequential(nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 10)).cuda()
for tensor in model.state_dict().values():
    dist.broadcast(tensor, src=0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    images, labels = torch.randn(8, 128).cuda(), torch.randint(10, (8,)).cuda()
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
    optimizer.step()
dist.destroy_process_group()
