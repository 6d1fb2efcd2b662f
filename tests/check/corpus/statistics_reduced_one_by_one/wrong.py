# rule: tiny-collectives
# source: own
# ranks: 2
"""Average many small statistics over all ranks in each step."""

import os

import torch
import torch.distributed as dist
from torch import nn


class Statistics:
    def __init__(self, names):
        self.values = {name: torch.zeros(8, device="cuda") for name in names}

    def update(self, model):
        for name, parameter in model.module.named_parameters():
            self.values[name] = parameter.grad.detach().flatten()[:8].clone()

    def synchronise(self):
        for value in self.values.values():
            dist.all_reduce(value, op=dist.ReduceOp.AVG)  # <-- here


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
net = nn.Sequential(*(nn.Linear(256, 256) for _ in range(16))).cuda()
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
statistics = Statistics([name for name, _ in net.named_parameters()])
torch.manual_seed(dist.get_rank())
for _ in range(5):
    loss = model(torch.randn(64, 256, device="cuda")).mean()
    optimizer.zero_grad()
    loss.backward()
    statistics.update(model)
    statistics.synchronise()
    optimizer.step()
