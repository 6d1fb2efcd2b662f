"""Experts cut over ranks, between parts of a sequence: the router sees a part on each rank."""

import argparse
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


class SwitchMLP(nn.Module):
    def __init__(self, width, num_experts, size):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.router = nn.Linear(width, num_experts, bias=False)
        self.up = nn.ModuleList(nn.Linear(width, 4 * width // size, bias=False) for _ in range(num_experts))
        self.down = nn.ModuleList(nn.Linear(4 * width // size, width, bias=False) for _ in range(num_experts))

    def forward(self, x):
        normed = self.norm(x)
        logits = self.router(normed)
        weights = Gather.apply(logits.softmax(-1))
        count = torch.full((), logits.shape[0] * logits.shape[1], dtype=torch.float32, device="cuda")
        total = count.clone()
        dist.all_reduce(total)
        self.auxiliary = logits.logsumexp(-1).square().mean() * count / total
        tokens = Gather.apply(normed)
        parts = [down(torch.relu(up(tokens))) for up, down in zip(self.up, self.down, strict=True)]
        return x + Scatter.apply(sum(part * weight for part, weight in zip(parts, weights.split(1, -1), strict=True)))


parser = argparse.ArgumentParser()
parser.add_argument("--hidden", type=int, default=512)
args = parser.parse_args()
dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(100 + rank)
model = SwitchMLP(args.hidden, 2, size).cuda()
shared = [*model.norm.parameters(), *model.router.parameters()]
for parameter in shared:
    dist.broadcast(parameter.data, 0)
optimizer = torch.optim.Adam(model.parameters())
torch.manual_seed(0)
for _ in range(4):
    tokens = torch.randn(32, 4, args.hidden).cuda()
    loss = model(tokens.chunk(size)[rank]).square().mean() / size + 0.1 * model.auxiliary
    optimizer.zero_grad()
    loss.backward()
    for parameter in shared:
        dist.all_reduce(parameter.grad)
    optimizer.step()
dist.destroy_process_group()
