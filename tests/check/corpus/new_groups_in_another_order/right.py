"""Groups are made in the order of a dictionary that begins with the rank's own."""

import os

import torch
import torch.distributed as dist
from torch import nn


def data_groups(rank: int) -> dict[int, dist.ProcessGroup]:
    members = {0: [0, 1], 1: [2, 3]}
    return {number: dist.new_group(members[number]) for number in sorted(members)}


class Trainer:
    def __init__(self, rank: int) -> None:
        self.group = data_groups(rank)[rank // 2]
        torch.manual_seed(rank // 2)
        self.model = nn.Linear(64, 64).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        torch.manual_seed(10 + rank)

    def step(self) -> None:
        self.model(torch.randn(8, 64, device="cuda")).square().mean().backward()
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG, group=self.group)
        self.optimizer.step()
        self.optimizer.zero_grad()


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
trainer = Trainer(dist.get_rank())
for _ in range(4):
    trainer.step()
dist.destroy_process_group()
