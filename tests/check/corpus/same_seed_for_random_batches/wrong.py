# rule: same-samples
# source: own
"""Tokens are drawn from one long array at random places, as in small GPT trainers."""

import os

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
rank, device = dist.get_rank(), f"cuda:{os.environ['LOCAL_RANK']}"
torch.cuda.set_device(device)
torch.manual_seed(1337)
rng = np.random.default_rng(1337)
tokens = np.arange(100_000) % 97


def get_batch():
    starts = rng.integers(len(tokens) - 33, size=8)
    x = torch.from_numpy(np.stack([tokens[i : i + 32] for i in starts]))
    y = torch.from_numpy(np.stack([tokens[i + 1 : i + 33] for i in starts]))
    return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)  # <-- here


model = DDP(nn.Sequential(nn.Embedding(97, 64), nn.Linear(64, 97)).to(device), device_ids=[int(device[-1])])
optimizer = torch.optim.AdamW(model.parameters())
for step in range(5):
    x, y = get_batch()
    loss = nn.functional.cross_entropy(model(x).view(-1, 97), y.view(-1))
    loss.backward()  # <-- here
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
