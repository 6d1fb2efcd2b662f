# rule: reduced-twice
# source: own
"""A trainer that grew out of one without DDP."""

import torch
import torch.distributed as dist
from torch import nn


class Trainer:
    def __init__(self):
        dist.init_process_group("nccl")
        torch.cuda.set_device(dist.get_rank())
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 2)).cuda()
        self.model = nn.parallel.DistributedDataParallel(net)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def batches(self):
        generator = torch.Generator().manual_seed(dist.get_rank())
        for _ in range(4):
            yield torch.randn(8, 20, generator=generator).cuda(), torch.randint(2, (8,), generator=generator).cuda()

    def reduce_gradients(self):
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)  # <-- here

    def train(self):
        for x, y in self.batches():
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(x), y).backward()
            self.reduce_gradients()
            self.optimizer.step()  # <-- here


Trainer().train()
