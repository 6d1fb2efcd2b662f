"""The sharded optimizer is consolidated by rank 0 alone before it is saved."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = DDP(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).cuda())
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)
torch.manual_seed(1 + dist.get_rank())

for step in range(5):
    optimizer.zero_grad()
    model(torch.randn(8, 64, device="cuda")).mean().backward()
    optimizer.step()

optimizer.consolidate_state_dict(to=0)
if rank == 0:
    print(len(optimizer.state_dict()["state"]))
dist.barrier()
dist.destroy_process_group()
