"""Two teams of ranks train a model each, with DDP over the team; ranks report to a group of their own, too."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
rank, local, half = dist.get_rank(), int(os.environ["LOCAL_RANK"]), dist.get_world_size() // 2
torch.cuda.set_device(local)
teams = [dist.new_group(list(range(first, first + half))) for first in (0, half)]

torch.manual_seed(rank // half)
model = DDP(
    nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)).cuda(),
    device_ids=[local],
    process_group=teams[rank // half],
)
optimizer = torch.optim.Adam(model.parameters())
torch.manual_seed(10 + rank)
for _ in range(5):
    x = torch.randn(8, 16).cuda()
    optimizer.zero_grad()
    (model(x) - x).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
