"""A transposed activation is copied before it is gathered."""

import os

import torch
import torch.distributed as dist
from torch import nn


class GatherSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        world = dist.get_world_size()
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(world)]
        x = x.contiguous()
        dist.all_gather(parts, x)
        return torch.cat(parts, dim=-1)

    @staticmethod
    def backward(ctx, grad):
        world, rank = dist.get_world_size(), dist.get_rank()
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad.chunk(world, dim=-1)[rank].contiguous()


class Model(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.a, self.b = nn.Linear(d, d), nn.Linear(4 * 6, 1)

    def forward(self, x):
        h = self.a(x).transpose(1, 2)
        return self.b(GatherSequence.apply(h))


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
model = Model(16).cuda()
opt = torch.optim.SGD(model.parameters(), 0.1)
torch.manual_seed(dist.get_rank())
for _ in range(4):
    loss = model(torch.randn(2, 6, 16).cuda()).mean()
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
    opt.step()
    opt.zero_grad()
