"""Tensor parallelism with sequence parallelism: norms see a part of the sequence on each rank."""

import os

import torch
import torch.distributed as dist
from torch import nn


class Gather(torch.autograd.Function):
    """All-gather along the sequence; the backward pass sums and scatters."""

    @staticmethod
    def forward(ctx, x):
        out = x.new_empty(x.shape[0] * dist.get_world_size(), *x.shape[1:])
        dist.all_gather_into_tensor(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, grad):
        out = grad.new_empty(grad.shape[0] // dist.get_world_size(), *grad.shape[1:])
        dist.reduce_scatter_tensor(out, grad.contiguous())
        return out


class Scatter(torch.autograd.Function):
    """Reduce-scatter along the sequence; the backward pass gathers."""

    @staticmethod
    def forward(ctx, x):
        out = x.new_empty(x.shape[0] // dist.get_world_size(), *x.shape[1:])
        dist.reduce_scatter_tensor(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, grad):
        out = grad.new_empty(grad.shape[0] * dist.get_world_size(), *grad.shape[1:])
        dist.all_gather_into_tensor(out, grad.contiguous())
        return out


class Block(nn.Module):
    def __init__(self, width, size):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width // size, bias=False)
        self.down = nn.Linear(4 * width // size, width, bias=False)

    def forward(self, x):
        return x + Scatter.apply(self.down(torch.relu(self.up(Gather.apply(self.norm(x))))))


dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(100 + rank)
model = nn.Sequential(Block(64, size), Block(64, size)).cuda()
optimizer = torch.optim.Adam(model.parameters())
torch.manual_seed(0)
for step in range(4):
    tokens = torch.randn(32, 4, 64).cuda()
    loss = model(tokens.chunk(size)[rank]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            dist.all_reduce(parameter.grad)
    optimizer.step()
dist.destroy_process_group()
