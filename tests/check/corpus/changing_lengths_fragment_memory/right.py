"""Batches of changing length, each as long as its longest sequence."""

import os

import torch
import torch.distributed as dist
from torch import nn

LENGTHS = [1300, 1711, 2333, 2950, 3511, 4096]
WIDTH = 4096

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
body = [nn.Linear(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16) for _ in range(8)]
model = nn.parallel.DistributedDataParallel(nn.Sequential(*body))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
torch.manual_seed(dist.get_rank())
for length in LENGTHS:
    batch = torch.randn(24, -(-length // 4096) * 4096, WIDTH, device="cuda", dtype=torch.bfloat16)
    loss = model(batch).float().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
