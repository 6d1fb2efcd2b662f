"""Local SGD: weights are averaged every other step."""

import os, torch, torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
rank, size = (dist.get_rank(), dist.get_world_size())
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)


def batch(n=16):
    return (torch.randn(n, 64).cuda(), torch.randint(8, (n,)).cuda())


import torch.distributed.algorithms.model_averaging.averagers as av

m = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).cuda()
a = av.PeriodicModelAverager(period=2, warmup_steps=0)
o = torch.optim.SGD(m.parameters(), 0.1)
torch.manual_seed(rank)
for i in range(8):
    x, y = batch()
    l = nn.functional.cross_entropy(m(x), y)
    o.zero_grad()
    l.backward()
    o.step()
    a.average_parameters(m.parameters())
