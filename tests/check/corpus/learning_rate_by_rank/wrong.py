# rule: replicas-diverge
# source: own
"""Learning rates are read from a table; the warm-up is counted per rank."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
model = DistributedDataParallel(nn.Linear(32, 32).cuda())
rates = [0.1, 0.05, 0.025, 0.0125, 0.00625]
optimizer = torch.optim.SGD(model.parameters(), lr=rates[rank])
torch.manual_seed(rank)
for step in range(4):
    loss = model(torch.randn(8, 32).cuda()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # <-- here
    for group in optimizer.param_groups:
        group["lr"] = rates[(step + rank) % 5]
