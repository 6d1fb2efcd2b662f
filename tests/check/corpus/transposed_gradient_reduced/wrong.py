# rule: non-contiguous-tensor
# source: pytorch/pytorch#144060
# ranks: 2
"""Tie the gradients of a weight and of its transpose."""

import os

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
encode = nn.Linear(64, 16, bias=False).cuda()
optimizer = torch.optim.SGD(encode.parameters(), lr=0.1)
torch.manual_seed(1 + dist.get_rank())
for _ in range(5):
    inputs = torch.randn(8, 64).cuda()
    decoded = encode(inputs) @ encode.weight
    loss = nn.functional.mse_loss(decoded, inputs)
    optimizer.zero_grad()
    loss.backward()
    gradient = encode.weight.grad.t()
    dist.all_reduce(gradient, op=dist.ReduceOp.AVG)  # <-- here
    optimizer.step()
