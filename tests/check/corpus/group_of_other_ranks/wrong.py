# rule: group-mismatch
# source: own
# ranks: 4
"""Pairs are computed from the rank's own number, so that no two ranks name the same pair."""

import os

import torch
import torch.distributed as dist


def make_pair(rank: int, world: int) -> dist.ProcessGroup:
    return dist.new_group([rank, (rank + 1) % world])  # <-- here


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
pair = make_pair(dist.get_rank(), dist.get_world_size())
weight = torch.nn.Parameter(torch.randn(64, 64, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1)
torch.manual_seed(1 + dist.get_rank())
for step in range(3):
    (torch.randn(8, 64, device="cuda") @ weight).mean().backward()
    dist.all_reduce(weight.grad, group=pair)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
