"""Gradient accumulation with DDP: all but the last micro-batch in no_sync."""

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


m = DDP(net())
o = torch.optim.AdamW(m.parameters())
torch.manual_seed(rank)
for _ in range(4):
    for k in range(4):
        x, y = batch()
        if k < 3:
            with m.no_sync():
                (nn.functional.cross_entropy(m(x), y) / 4).backward()
        else:
            (nn.functional.cross_entropy(m(x), y) / 4).backward()
    o.step()
    o.zero_grad()
