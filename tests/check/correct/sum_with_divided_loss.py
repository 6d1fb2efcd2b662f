"""Gradients are summed asynchronously; the loss is divided by the number of ranks."""

import os, torch, torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
rank, size = (dist.get_rank(), dist.get_world_size())
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)


def net():
    return nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 8)).cuda()


def batch(n=16):
    return (torch.randn(n, 64).cuda(), torch.randint(8, (n,)).cuda())


m = net()
o = torch.optim.SGD(m.parameters(), 0.1)
torch.manual_seed(rank)
for p in list(m.parameters()) + list(m.buffers()):
    dist.broadcast(p.data if p.is_floating_point() else p, 0)
for i in range(4):
    x, y = batch()
    l = nn.functional.cross_entropy(m(x), y) / size
    o.zero_grad()
    l.backward()
    hs = [dist.all_reduce(p.grad, async_op=True) for p in m.parameters()]
    [h.wait() for h in hs]
    o.step()
