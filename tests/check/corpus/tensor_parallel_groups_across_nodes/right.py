"""Tensor parallel layers inside data parallel replicas, on two nodes."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
tp, dp = mesh.get_group("tp"), mesh.get_group("dp")


class Reduce(torch.autograd.Function):
    """The sum of partial results; its gradient is the same on all ranks."""

    @staticmethod
    def forward(context, partial):
        dist.all_reduce(partial, group=tp)
        return partial

    @staticmethod
    def backward(context, gradient):
        return gradient


class Copy(torch.autograd.Function):
    """The identity, whose gradient is summed."""

    @staticmethod
    def forward(context, inputs):
        return inputs.view_as(inputs)

    @staticmethod
    def backward(context, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=tp)
        return gradient


class Block(nn.Module):
    def __init__(self, width=4096):
        super().__init__()
        self.up = nn.Linear(width, 2 * width, bias=False, device="cuda", dtype=torch.bfloat16)
        self.down = nn.Linear(2 * width, width, bias=False, device="cuda", dtype=torch.bfloat16)

    def forward(self, hidden):
        return Reduce.apply(self.down(self.up(Copy.apply(hidden)).relu()))


torch.manual_seed(mesh.get_local_rank("tp"))
model = nn.parallel.DistributedDataParallel(nn.Sequential(*(Block() for _ in range(4))), process_group=dp)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
torch.manual_seed(10 + mesh.get_local_rank("dp"))
for _ in range(4):
    loss = model(torch.randn(32768, 4096, device="cuda", dtype=torch.bfloat16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
