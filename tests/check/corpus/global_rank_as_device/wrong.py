# rule: wrong-device-index
# source: meta-llama/llama-cookbook#90
# ranks: 16
# nodes: 2
"""Choose the device by the rank."""

import os

import torch
import torch.distributed as dist
from torch import nn


def setup():
    dist.init_process_group("nccl")
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)  # <-- here
    return rank


rank = setup()
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(32, 32).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(4, 32).cuda()).sum().backward()
    optimizer.step()
