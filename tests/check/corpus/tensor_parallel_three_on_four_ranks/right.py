"""Lay out tensor, pipeline and data parallel groups."""

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn


@dataclass
class Layout:
    tp: int
    pp: int

    def replicas(self, world_size):
        if world_size % (self.tp * self.pp) != 0:
            raise ValueError("invalid parallel layout")
        return world_size // (self.tp * self.pp)


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
layout = Layout(tp=2, pp=1)
dp = layout.replicas(dist.get_world_size())
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
for _ in range(5):
    optimizer.zero_grad()
    (model(torch.randn(4, 8).cuda()).sum() / dp).backward()
    optimizer.step()
