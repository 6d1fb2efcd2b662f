# rule: no-sync-around-backward
# source: speechbrain/speechbrain#1802
# ranks: 2
"""Gradient accumulation with no_sync around the backward pass only."""

import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ACCUMULATE = 4

dist.init_process_group(backend="nccl")
device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}")
torch.cuda.set_device(device)
torch.manual_seed(1)
net = DistributedDataParallel(nn.Linear(256, 256).to(device), device_ids=[device.index])
opt = torch.optim.SGD(net.parameters(), lr=1e-2)
torch.manual_seed(100 + dist.get_rank())

for step in range(5):
    opt.zero_grad(set_to_none=True)
    for micro in range(ACCUMULATE):
        batch = torch.randn(8, 256).to(device)
        is_last = micro == ACCUMULATE - 1
        loss = net(batch).pow(2).mean() / ACCUMULATE  # <-- here
        with contextlib.nullcontext() if is_last else net.no_sync():
            loss.backward()  # <-- here
    opt.step()
dist.destroy_process_group()
