# rule: memory-on-another-card
# source: own
# ranks: 4
"""The device is chosen by the rank within the node, but one default is left."""

import os

import torch
import torch.distributed as dist
from torch import nn


def warm_up():
    return torch.empty(4 * 2**30, dtype=torch.uint8, device="cuda")  # <-- here


dist.init_process_group("nccl")
local_rank = int(os.environ["LOCAL_RANK"])
workspace = warm_up()
torch.cuda.set_device(local_rank)
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(128, 128).cuda(), device_ids=[local_rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
for _ in range(5):
    loss = model(torch.randn(16, 128).cuda()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
