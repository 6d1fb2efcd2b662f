"""Metrics are gathered inside the block in which rank 0 writes its log."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def log_metrics(step: int, metrics: dict[str, float]) -> None:
    collected = [None] * dist.get_world_size()
    dist.all_gather_object(collected, metrics)
    if dist.get_rank() == 0:
        print(step, sum(entry["seconds"] for entry in collected if entry))


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = DDP(nn.Linear(64, 1).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(1 + dist.get_rank())
for step in range(1, 31):
    loss = model(torch.randn(8, 64, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        log_metrics(step, {"seconds": 0.1 * step})
dist.destroy_process_group()
