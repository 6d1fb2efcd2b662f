"""Data parallel training that clears gradients before backward."""

import os

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(32, 4).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
torch.manual_seed(dist.get_rank())


def step(inputs, targets):
    model.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


for _ in range(6):
    step(torch.randn(8, 32).cuda(), torch.randint(4, (8,)).cuda())
dist.destroy_process_group()
