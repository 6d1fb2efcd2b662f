"""Gradients are flattened into one buffer per step and averaged together."""

import torch
import torch.distributed as dist
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors


def sync(parameters):
    grads = [p.grad for p in parameters if p.grad is not None]
    flat = _flatten_dense_tensors(grads)
    dist.all_reduce(flat, op=dist.ReduceOp.AVG)
    for grad, part in zip(grads, _unflatten_dense_tensors(flat, grads)):
        grad.copy_(part)


dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 1)).cuda()
for parameter in net.parameters():
    dist.broadcast(parameter.data, 0)
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
torch.manual_seed(dist.get_rank() + 1)
for _ in range(4):
    x = torch.randn(8, 32).cuda()
    opt.zero_grad()
    net(x).square().mean().backward()
    sync(list(net.parameters()))
    opt.step()
