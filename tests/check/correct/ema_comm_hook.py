"""A moving average of the weights, and gradients that travel as float16."""

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


import copy
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

m = DDP(net())
m.register_comm_hook(None, fp16_compress_hook)
ema = copy.deepcopy(m.module)
o = torch.optim.AdamW(m.parameters())
torch.manual_seed(rank)
for _ in range(4):
    x, y = batch()
    l = nn.functional.cross_entropy(m(x), y)
    o.zero_grad()
    l.backward()
    o.step()
    with torch.no_grad():
        for a, b in zip(ema.parameters(), m.module.parameters()):
            a.lerp_(b, 0.01)
