# rule: missing-zero-grad
# source: facebookresearch/nwm#16
# ranks: 2
"""Mixed precision training that clears gradients in one of two branches."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

config = {"bf16": True, "lr": 1e-3, "steps": 8, "batch": 4}


def train_step(model, optimizer, scaler, images):
    if config["bf16"]:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(images).square().mean()
        loss.backward()  # <-- here
        optimizer.step()  # <-- here
    else:
        optimizer.zero_grad()
        loss = model(images).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


dist.init_process_group("nccl")
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
model = DDP(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 10)).cuda())
optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
scaler = torch.amp.GradScaler("cuda", enabled=not config["bf16"])
torch.manual_seed(local_rank)
for _ in range(config["steps"]):
    train_step(model, optimizer, scaler, torch.randn(config["batch"], 3, 16, 16).cuda())
dist.destroy_process_group()
