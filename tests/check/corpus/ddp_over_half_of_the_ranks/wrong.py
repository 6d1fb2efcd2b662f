# rule: gradients-not-reduced
# source: own
# ranks: 4
# nodes: 2
"""DDP is given the group of the node, though the job has two nodes."""

import os

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
rank, per_node = dist.get_rank(), int(os.environ["LOCAL_WORLD_SIZE"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
groups = [dist.new_group(range(first, first + per_node)) for first in range(0, dist.get_world_size(), per_node)]
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)).cuda()
model = nn.parallel.DistributedDataParallel(model, process_group=groups[rank // per_node])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
torch.manual_seed(rank)
for _ in range(4):
    loss = model(torch.randn(8, 16).cuda()).square().mean()
    optimizer.zero_grad()
    loss.backward()  # <-- here
    optimizer.step()  # <-- here
dist.destroy_process_group()
