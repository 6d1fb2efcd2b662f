# rule: scheduler-too-fast
# source: huggingface/accelerate#2926
# ranks: 4
"""A learning rate schedule that is over when a fraction of the training is."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

UPDATES = 100


class ScaledScheduler:
    """Steps once for each sample that all processes together have taken, in units of one process."""

    def __init__(self, scheduler):
        self.scheduler = scheduler

    def step(self):
        for _ in range(dist.get_world_size()):
            self.scheduler.step()  # <-- here


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(20, 20).cuda())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = ScaledScheduler(torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=UPDATES))
torch.manual_seed(dist.get_rank())
for _ in range(UPDATES):
    loss = model(torch.randn(4, 20).cuda()).square().sum()
    loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
dist.destroy_process_group()
