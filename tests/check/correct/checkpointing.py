"""Activation checkpointing under DDP, with a fused optimizer."""

import os, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
rank, size = (dist.get_rank(), dist.get_world_size())
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)


def net():
    return nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 8)).cuda()


def batch(n=16):
    return (torch.randn(n, 64).cuda(), torch.randint(8, (n,)).cuda())


from torch.utils.checkpoint import checkpoint

m = DDP(net())
o = torch.optim.AdamW(m.parameters(), fused=True)
torch.manual_seed(rank)
for i in range(4):
    x, y = batch()
    x.requires_grad_()
    l = nn.functional.cross_entropy(checkpoint(m, x, use_reentrant=False), y)
    o.zero_grad()
    l.backward()
    o.step()
