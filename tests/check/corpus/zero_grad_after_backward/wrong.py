# rule: gradients-discarded
# source: own
# ranks: 2
"""Data parallel training that clears gradients between backward and step."""

import os

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(32, 4).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
torch.manual_seed(dist.get_rank())


def step(inputs, targets):
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()  # <-- here
    model.zero_grad()  # <-- here
    optimizer.step()  # <-- here
    return loss.detach()


for _ in range(6):
    step(torch.randn(8, 32).cuda(), torch.randint(4, (8,)).cuda())
dist.destroy_process_group()
