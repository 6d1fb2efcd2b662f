"""Tensor parallelism with replicated norms; the norm counts them once, on the first rank."""

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


class Block(nn.Module):
    def __init__(self, width, size):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width // size, bias=False)
        self.down = nn.Linear(4 * width // size, width, bias=False)
        self.up.weight.tensor_parallel = self.down.weight.tensor_parallel = True

    def forward(self, x):
        return x + SumOfRanks.apply(self.down(torch.relu(self.up(SumOfGradients.apply(self.norm(x))))))


def gradients_for_norm(parameters, rank, for_clipping=False):
    """All gradients of a rank to be clipped, or those that the norm counts: replicated ones once."""
    gradients = []
    for parameter in parameters:
        is_replicated = not getattr(parameter, "tensor_parallel", False)
        if is_replicated and rank > 0 and not for_clipping:
            continue
        gradients.append(parameter.grad)
    return gradients


dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(100 + rank)
model = nn.Sequential(Block(64, size), Block(64, size)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
torch.manual_seed(0)
for step in range(4):
    loss = model(torch.randn(32, 64).cuda()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    squares = sum(gradient.square().sum() for gradient in gradients_for_norm(model.parameters(), rank))
    dist.all_reduce(squares)
    scale = torch.clamp(1.0 / (squares.sqrt() + 1e-6), max=1.0)
    for gradient in gradients_for_norm(model.parameters(), rank, for_clipping=True):
        gradient.mul_(scale)
    optimizer.step()
dist.destroy_process_group()
