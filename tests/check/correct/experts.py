"""Experts on different ranks, and a layer that all ranks share."""

import os, torch, torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
rank, size = (dist.get_rank(), dist.get_world_size())
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)


def batch(n=16):
    return (torch.randn(n, 64).cuda(), torch.randint(8, (n,)).cuda())


class A2A(torch.autograd.Function):
    @staticmethod
    def forward(c, x):
        o = torch.empty_like(x)
        dist.all_to_all_single(o, x.contiguous())
        return o

    @staticmethod
    def backward(c, g):
        o = torch.empty_like(g)
        dist.all_to_all_single(o, g.contiguous())
        return o


shared = nn.Linear(64, 64).cuda()
torch.manual_seed(100 + rank)
expert = nn.Linear(64, 64).cuda()
for p in shared.parameters():
    dist.broadcast(p.data, 0)
o = torch.optim.SGD([*shared.parameters(), *expert.parameters()], 0.1)
torch.manual_seed(rank)
for i in range(4):
    x, _y = batch(16 * size)
    h = shared(x)
    l = A2A.apply(expert(A2A.apply(h))).square().mean()
    o.zero_grad()
    l.backward()
    for p in shared.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
    o.step()
