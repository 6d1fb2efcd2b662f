# rule: gradients-not-reduced
# source: own
"""Gradient accumulation with DDP: gradients are reduced in the last micro-batch."""

import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MICRO_BATCHES = 4
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3)).cuda())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(dist.get_rank())
for step in range(3):
    for micro_batch in range(MICRO_BATCHES):
        is_last = micro_batch == MICRO_BATCHES
        with contextlib.nullcontext() if is_last else model.no_sync():
            logits = model(torch.randn(4, 32).cuda())
            loss = nn.functional.cross_entropy(logits, torch.randint(3, (4,)).cuda()) / MICRO_BATCHES
            loss.backward()  # <-- here
    optimizer.step()  # <-- here
    optimizer.zero_grad()
