# rule: collective-mismatch, missing-participant, early-exit, unequal-batches
# source: NVIDIA-NeMo/Automodel PR 2468
# ranks: 2
"""A batch that is too short is skipped by the rank that got it."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

LENGTHS = [[40, 33, 51, 64, 28], [45, 37, 12, 50, 61]]
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = DDP(nn.Linear(64, 1).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for length in LENGTHS[rank]:
    batch = torch.randn(length, 64, device="cuda")
    is_short = torch.tensor(float(length < 16), device="cuda")
    if is_short.item():
        continue
    optimizer.zero_grad()
    model(batch).mean().backward()  # <-- here
    optimizer.step()
dist.destroy_process_group()
