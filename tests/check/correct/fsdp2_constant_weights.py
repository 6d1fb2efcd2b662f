"""FSDP2 over weights that begin as constants: equal shards on every rank are no replicas."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
with torch.device("meta"):
    model = nn.Sequential(*[nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64)) for _ in range(3)])
for layer in model:
    fully_shard(layer)
fully_shard(model)
model.to_empty(device="cuda")
for parameter in model.parameters():
    nn.init.constant_(parameter, 0.02)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
torch.manual_seed(dist.get_rank() + 1)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(8, 64, device="cuda")).square().mean().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
dist.destroy_process_group()
