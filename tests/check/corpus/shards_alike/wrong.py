# rule: identical-shards
# source: pytorch/torchtitan#3106
"""A column- and a row-parallel layer, written by hand."""

import torch
import torch.distributed as dist
from torch import nn


class SumForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)  # <-- here
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class SumBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


class ParallelMLP(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        part = hidden // dist.get_world_size()
        self.up = nn.Parameter(torch.empty(part, width, device="cuda"))
        self.down = nn.Parameter(torch.empty(width, part, device="cuda"))
        for weight in (self.up, self.down):
            nn.init.normal_(weight, std=0.02)

    def forward(self, x):
        x = SumBackward.apply(x)
        return SumForward.apply(torch.relu(x @ self.up.t()) @ self.down.t())


dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
torch.manual_seed(0)
model = ParallelMLP(64, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(0)
for _ in range(4):
    x = torch.randn(16, 64).cuda()
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
