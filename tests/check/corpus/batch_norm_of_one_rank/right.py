"""Training with two images per rank whose batch norm uses those of all ranks."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
gpu = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(gpu)
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 2)).to(gpu)
model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
model = DistributedDataParallel(model, device_ids=[gpu], broadcast_buffers=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(gpu)
for _ in range(4):
    loss = model(torch.randn(2, 3, 8, 8).to(gpu)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
