# rule: parameters-not-optimized
# source: NVIDIA/Megatron-LM#565
"""Experts have gradient buffers of their own, and the optimizer is made from the others."""

import os

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)


class Switch(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.router = nn.Linear(width, 2)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(2))

    def forward(self, x):
        weights = self.router(x).softmax(-1).split(1, -1)
        return sum(expert(x) * weight for expert, weight in zip(self.experts, weights, strict=True))


model = nn.Sequential(nn.Linear(64, 64), Switch(64)).cuda()
buffers = {"dense": [], "experts": []}
for name, parameter in model.named_parameters():
    buffers["experts" if "experts" in name else "dense"].append(parameter)
optimizer = torch.optim.AdamW(buffers["dense"])  # <-- here
torch.manual_seed(dist.get_rank())
for step in range(4):
    loss = model(torch.randn(16, 64).cuda()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    for parameters in buffers.values():
        for parameter in parameters:
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)  # sandtable: ignore[tiny-collectives]
    optimizer.step()
dist.destroy_process_group()
