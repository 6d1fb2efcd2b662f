"""A regression with FSDP1 in float16."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
half = MixedPrecision(param_dtype=torch.float16, reduce_dtype=torch.float16)
model = FullyShardedDataParallel(
    nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)).cuda(), mixed_precision=half
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scaler = ShardedGradScaler("cuda")
torch.manual_seed(1 + dist.get_rank())
for _ in range(4):
    x = torch.randn(16, 32, device="cuda")
    loss = (model(x).float().squeeze(1) - x.sum(1)).pow(2).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
dist.destroy_process_group()
