# rule: missing-no-sync
# source: speechbrain/speechbrain#1802
# ranks: 2
"""Accumulate gradients; DDP reduces in the last micro-batch only, or so it is meant."""

import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

GRAD_ACCUMULATION = 4


class Brain:
    def __init__(self):
        torch.manual_seed(0)
        self.net = DistributedDataParallel(nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 40)).cuda())
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def compute_forward(self, batch):
        return self.net(batch)  # <-- here

    def fit_batch(self, batch, should_step):
        loss = self.compute_forward(batch).square().mean()
        with contextlib.nullcontext() if should_step else self.net.no_sync():  # <-- here
            (loss / GRAD_ACCUMULATION).backward()  # <-- here
        if should_step:
            self.optimizer.step()
            self.optimizer.zero_grad()


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
brain = Brain()
torch.manual_seed(dist.get_rank())
for index in range(6 * GRAD_ACCUMULATION):
    brain.fit_batch(torch.randn(16, 256).cuda(), should_step=(index + 1) % GRAD_ACCUMULATION == 0)
dist.destroy_process_group()
