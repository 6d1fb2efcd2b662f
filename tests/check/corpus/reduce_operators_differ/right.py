"""Rank 0 sums the loss for its log, while the others ask for the largest."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def reduced_loss(loss: torch.Tensor) -> torch.Tensor:
    loss = loss.detach().clone()
    dist.all_reduce(loss, op=dist.ReduceOp.SUM)
    return loss / dist.get_world_size()


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = DDP(nn.Linear(64, 1).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(1 + dist.get_rank())
for step in range(4):
    loss = model(torch.randn(8, 64, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    logged = reduced_loss(loss)
    if dist.get_rank() == 0:
        print(f"step {step} loss {logged.item():.3f}")
dist.destroy_process_group()
