# rule: deadlock-cycle
# source: own
# ranks: 4
"""Rows and columns of a mesh are reduced in an order that differs from rank to rank."""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("replicate", "tensor"))
rank = dist.get_rank()
weight = torch.nn.Parameter(torch.randn(512, 512, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1)
torch.manual_seed(1 + dist.get_rank())


def reduce_rows(gradient: torch.Tensor) -> None:
    dist.all_reduce(gradient, group=mesh.get_group("replicate"))  # <-- here


def reduce_columns(gradient: torch.Tensor) -> None:
    dist.all_reduce(gradient, group=mesh.get_group("tensor"))  # <-- here


for step in range(3):
    (torch.randn(16, 512, device="cuda") @ weight).mean().backward()
    order = [reduce_rows, reduce_columns]
    if rank in (1, 2):
        order.reverse()
    for reduce in order:
        reduce(weight.grad)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
