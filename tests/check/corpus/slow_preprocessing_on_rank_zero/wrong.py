# rule: collective-timeout
# source: hiyouga/LLaMA-Factory#360
# ranks: 2
"""Rank 0 tokenizes for longer than the others may wait for it."""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl", timeout=timedelta(minutes=30))
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


def tokenize(num_documents: int, seconds_per_document: float) -> list[int]:
    time.sleep(num_documents * seconds_per_document)
    return list(range(100))


if dist.get_rank() == 0:
    tokenize(num_documents=1_200_000, seconds_per_document=0.003)
dist.barrier()  # <-- here

model = DDP(nn.Linear(64, 1).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(1 + dist.get_rank())
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 64, device="cuda")).mean().backward()
    optimizer.step()
dist.destroy_process_group()
