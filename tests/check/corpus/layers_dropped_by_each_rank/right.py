"""All ranks leave out the same FSDP blocks."""

import os
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.f = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        return x + self.f(x)


class Stack(nn.Module):
    def __init__(self, d, n, drop):
        super().__init__()
        self.blocks = nn.ModuleList(Block(d) for _ in range(n))
        self.drop = drop

    def forward(self, x):
        for block in self.blocks:
            if random.random() < self.drop:
                continue
            x = block(x)
        return x


def main():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    random.seed(0)
    model = Stack(32, 6, 0.3).cuda()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(rank)
    for _ in range(6):
        x = torch.randn(4, 32).cuda().requires_grad_()
        loss = model(x).square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
    dist.destroy_process_group()


main()
