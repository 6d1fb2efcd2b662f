"""DDP with one bucket for the whole model, so that there is only one collective."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
torch.manual_seed(0)
with torch.device("cuda"):
    layers = [nn.Sequential(nn.Linear(2048, 2048), nn.ReLU()) for _ in range(16)]
    net = nn.Sequential(*layers)
model = DistributedDataParallel(net, device_ids=[local_rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

torch.manual_seed(dist.get_rank())
for _ in range(5):
    inputs = torch.randn(2048, 2048, device="cuda")
    loss = model(inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
