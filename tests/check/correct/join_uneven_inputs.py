"""Uneven inputs under Join: ranks that have ended make up for the collectives of the others."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
model = DDP(nn.Linear(32, 4).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(1 + rank)
with Join([model]):
    for _ in range(6 + rank % 2):
        optimizer.zero_grad()
        model(torch.randn(8, 32, device="cuda")).sum().backward()
        optimizer.step()
dist.barrier()
dist.destroy_process_group()
