"""Megatron's sequence parallelism by hand: between the linears each rank holds its share of the sequence."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh


def gathered(part, mesh):
    whole = torch.empty(part.shape[0] * mesh.size(), *part.shape[1:], device=part.device)
    dist.all_gather_into_tensor(whole, part.contiguous(), group=mesh.get_group())
    return whole


def scattered(whole, mesh):
    part = torch.empty(whole.shape[0] // mesh.size(), *whole.shape[1:], device=whole.device)
    dist.reduce_scatter_tensor(part, whole.contiguous(), group=mesh.get_group())
    return part


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, part, mesh):
        ctx.mesh = mesh
        return gathered(part, mesh)

    @staticmethod
    def backward(ctx, gradient):
        return scattered(gradient, ctx.mesh), None


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, whole, mesh):
        ctx.mesh = mesh
        return scattered(whole, mesh)

    @staticmethod
    def backward(ctx, gradient):
        return gathered(gradient, ctx.mesh), None


class Block(nn.Module):
    def __init__(self, hidden, mesh):
        super().__init__()
        self.mesh = mesh
        self.norm = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, 4 * hidden // mesh.size(), bias=False)
        self.down = nn.Linear(4 * hidden // mesh.size(), hidden, bias=False)
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.dropout = nn.Dropout(0.1)

    def forward(self, tokens):
        wide = F.relu(self.up(Gather.apply(self.norm(tokens), self.mesh)))
        return tokens + self.dropout(Scatter.apply(self.down(wide), self.mesh) + self.bias)


parser = argparse.ArgumentParser()
parser.add_argument("--tp", type=int, default=2)
parser.add_argument("--hidden", type=int, default=1024)
args = parser.parse_args()
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank % torch.cuda.device_count())
mesh = init_device_mesh("cuda", (dist.get_world_size() // args.tp, args.tp), mesh_dim_names=("dp", "tp"))
dp, tp = mesh["dp"], mesh["tp"]

torch.manual_seed(tp.get_local_rank())
model = nn.Sequential(*(Block(args.hidden, tp) for _ in range(2))).cuda()
shared = [parameter for parameter in model.parameters() if parameter.dim() == 1]
for parameter in shared:
    dist.broadcast(parameter.data, 0)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
samples = torch.Generator().manual_seed(dp.get_local_rank())
torch.cuda.manual_seed(77 + rank)  # every rank has tokens of its own

for _ in range(3):
    inputs, targets = (torch.randn(8, 2, args.hidden, generator=samples).cuda() for _ in range(2))
    mine = [whole.chunk(args.tp)[tp.get_local_rank()] for whole in (inputs, targets)]
    loss = (model(mine[0]) - mine[1]).square().sum() / targets.numel()
    optimizer.zero_grad()
    loss.backward()
    for parameter in shared:
        dist.all_reduce(parameter.grad, group=tp.get_group())
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG, group=dp.get_group())
    optimizer.step()
dist.destroy_process_group()
