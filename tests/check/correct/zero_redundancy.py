"""Optimizer states are cut over the ranks."""

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


from torch.distributed.optim import ZeroRedundancyOptimizer

m = DDP(net())
o = ZeroRedundancyOptimizer(m.parameters(), torch.optim.AdamW, lr=0.001)
torch.manual_seed(rank)
for _ in range(5):
    x, y = batch()
    l = nn.functional.cross_entropy(m(x), y)
    o.zero_grad()
    l.backward()
    o.step()
