"""Ranks agree to skip batches and to stop, by all_reduce, by broadcast and by gathered objects."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
model = DDP(nn.Linear(32, 4).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(1 + rank)


def agreed(flag: bool) -> bool:
    tensor = torch.tensor([float(flag)], device="cuda")
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return bool(tensor.item())


for epoch in range(3):
    for step in range(12):
        if agreed(rank == 2 and step % 4 == 1):
            continue
        optimizer.zero_grad()
        model(torch.randn(8, 32, device="cuda")).sum().backward()
        optimizer.step()
        votes: list[bool | None] = [None] * world
        dist.all_gather_object(votes, rank == 1 and step == 9)
        if any(votes):
            break
    decision = [rank == 0 and epoch == 1]
    dist.broadcast_object_list(decision, src=0)
    if decision[0]:
        break
if rank == 0:
    torch.save(model.module.state_dict(), "model.pt")
dist.barrier()
dist.destroy_process_group()
