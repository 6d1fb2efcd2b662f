"""Gradient accumulation that steps the scheduler once per update."""

import os

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(16, 16).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
accumulate, num_updates = 4, 50
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=num_updates)
torch.manual_seed(dist.get_rank())
for index in range(num_updates * accumulate):
    loss = model(torch.randn(4, 16).cuda()).square().mean() / accumulate
    loss.backward()
    if (index + 1) % accumulate == 0:
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
dist.destroy_process_group()
