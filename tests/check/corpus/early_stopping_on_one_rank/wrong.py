# rule: early-exit
# source: talmolab/sleap-nn#471
# ranks: 2
"""Rank 0 alone keeps count of epochs without improvement, and alone stops."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class EarlyStopping:
    def __init__(self, patience: int) -> None:
        self.patience, self.best, self.num_bad = patience, float("inf"), 0

    def update(self, value: float) -> bool:
        self.num_bad = 0 if value < self.best else self.num_bad + 1
        self.best = min(self.best, value)
        return self.num_bad >= self.patience


def train(rank: int, num_epochs: int = 12) -> None:
    torch.manual_seed(0)
    model = DDP(nn.Linear(32, 4).cuda(), device_ids=[torch.cuda.current_device()])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + dist.get_rank())
    stopping = EarlyStopping(patience=3)
    for epoch in range(num_epochs):
        for _ in range(2):
            loss = model(torch.randn(4, 32, device="cuda")).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        validation_loss = [3.0, 2.0, 1.5, 1.5, 1.6, 1.7, 1.8][min(epoch, 6)]
        if rank == 0 and stopping.update(validation_loss):
            break  # <-- here


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
train(dist.get_rank())
dist.destroy_process_group()
