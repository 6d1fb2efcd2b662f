# rule: scheduler-before-optimizer
# source: own
# ranks: 2
"""Training that steps its warm-up before the first update."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
model = DistributedDataParallel(nn.Bilinear(8, 8, 4).cuda())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scheduler = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
torch.manual_seed(dist.get_rank())
for step in range(10):
    scheduler.step()  # <-- here
    optimizer.zero_grad(set_to_none=False)
    out = model(torch.randn(4, 8).cuda(), torch.randn(4, 8).cuda())
    out.logsumexp(-1).mean().backward()
    optimizer.step()
dist.destroy_process_group()
