# rule: gradients-not-reduced
# source: NVIDIA/Megatron-LM#7452
"""Heads over ranks, and one norm for all heads; its gradients are summed with sequence parallelism only."""

import os

import torch
import torch.distributed as dist
from torch import nn


class SumOfGradients(torch.autograd.Function):
    """The identity; the gradients of all ranks add up."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad


class SumOfRanks(torch.autograd.Function):
    """The sum over ranks; the gradient passes through."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class Mixer(nn.Module):
    def __init__(self, width, heads, size):
        super().__init__()
        self.heads = heads // size
        self.up = nn.Linear(width, width // size, bias=False)
        self.out_norm = nn.RMSNorm(width // heads)
        self.out_norm.weight.sequence_parallel = True
        self.out = nn.Linear(width // size, width, bias=False)

    def forward(self, x):
        heads = self.up(SumOfGradients.apply(x)).unflatten(-1, (self.heads, -1))
        return x + SumOfRanks.apply(self.out(self.out_norm(heads).flatten(-2)))


def finalize(model, sequence_parallel):
    """Sum the gradients of parameters that every rank uses for a part of the work."""
    for parameter in model.parameters():
        if getattr(parameter, "sequence_parallel", False) and sequence_parallel:
            dist.all_reduce(parameter.grad)


dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(100 + rank)
model = nn.Sequential(Mixer(64, 8, size), Mixer(64, 8, size)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
torch.manual_seed(0)
for step in range(4):
    loss = model(torch.randn(16, 64).cuda()).square().mean()
    optimizer.zero_grad()
    loss.backward()  # <-- here
    finalize(model, sequence_parallel=False)
    optimizer.step()  # <-- here
dist.destroy_process_group()
