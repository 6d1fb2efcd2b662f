"""FSDP1 with parameters and optimizer in host memory."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

dist.init_process_group("nccl")
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
torch.manual_seed(0)
net = nn.Sequential(*[nn.Linear(256, 256) for _ in range(3)])
model = FSDP(
    net, auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), cpu_offload=CPUOffload(offload_params=True), device_id=local
)
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(dist.get_rank())
for step in range(6):
    x = torch.randn(32, 256, device="cuda")
    loss = model(x).square().mean()
    loss.backward()
    opt.step()
    opt.zero_grad()
dist.destroy_process_group()
