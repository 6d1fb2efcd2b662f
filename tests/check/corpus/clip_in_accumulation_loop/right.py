"""Gradient accumulation that clips once per update."""

import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

settings = {"accumulate": 2, "max_norm": 1.0, "updates": 5}
dist.init_process_group("nccl")
gpu = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(gpu)
torch.manual_seed(5)
model = DistributedDataParallel(nn.Sequential(nn.Linear(40, 40), nn.SiLU(), nn.Linear(40, 1)).to(gpu), device_ids=[gpu])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
torch.manual_seed(50 + dist.get_rank())


def micro_step(is_last):
    with contextlib.nullcontext() if is_last else model.no_sync():
        loss = model(torch.randn(8, 40).to(gpu)).square().mean() / settings["accumulate"]
        loss.backward()


for _ in range(settings["updates"]):
    for micro in range(settings["accumulate"]):
        micro_step(micro == settings["accumulate"] - 1)
    torch.nn.utils.clip_grad_norm_(model.parameters(), settings["max_norm"])
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
