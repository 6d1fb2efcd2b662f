# rule: collective-mismatch
# source: own
# ranks: 2
"""The gradient is sent in bfloat16 on the ranks of which the configuration says so."""

import os

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
wire_type = torch.bfloat16 if rank % 2 else torch.float32


def average(parameters) -> None:
    for parameter in parameters:
        sent = parameter.grad.to(wire_type)
        dist.all_reduce(sent, op=dist.ReduceOp.AVG)  # <-- here
        parameter.grad.copy_(sent)


model = nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(1 + dist.get_rank())
for step in range(3):
    model(torch.randn(16, 1024, device="cuda")).mean().backward()
    average(model.parameters())
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
