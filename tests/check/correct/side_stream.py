"""Batches are prepared on a stream of their own, with all waits in place."""

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
o = torch.optim.SGD(m.parameters(), 0.1)
torch.manual_seed(rank)
s = torch.cuda.Stream()
for i in range(5):
    with torch.cuda.stream(s):
        x, y = batch()
        x = x * 2
    torch.cuda.current_stream().wait_stream(s)
    x.record_stream(torch.cuda.current_stream())
    y.record_stream(torch.cuda.current_stream())
    l = nn.functional.cross_entropy(m(x), y)
    o.zero_grad()
    l.backward()
    o.step()
