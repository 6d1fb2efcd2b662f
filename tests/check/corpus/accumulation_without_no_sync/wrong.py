# rule: missing-no-sync
# source: own
# ranks: 2
"""Accumulate four micro-batches per update."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

config = {"accumulate": 4, "updates": 5, "width": 512}

dist.init_process_group("nccl")
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
torch.manual_seed(42)
width = config["width"]
encoder = torch.nn.GRU(width, width, num_layers=2, batch_first=True).to(local)
ddp = DDP(encoder, device_ids=[local])
optimizer = torch.optim.RMSprop(ddp.parameters())
torch.manual_seed(1000 + dist.get_rank())

for _ in range(config["updates"]):
    for micro in range(config["accumulate"]):
        output, _ = ddp(torch.randn(8, 16, width, device=local))  # <-- here
        loss = output.abs().mean() / config["accumulate"]
        loss.backward()  # <-- here
    optimizer.step()
    optimizer.zero_grad()
