"""A pipeline by hand: stages of other shapes, more micro-batches than stages, and groups for its two halves."""

import os

import torch
import torch.distributed as dist
from torch import nn

WIDTHS = [64, 96, 48, 32, 16]

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
halves = [dist.new_group(list(range(0, world // 2))), dist.new_group(list(range(world // 2, world)))]
mine = halves[rank // (world // 2)]
stage = nn.Linear(WIDTHS[rank], WIDTHS[rank + 1]).cuda()
optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)


def forward() -> tuple[torch.Tensor, torch.Tensor]:
    if rank == 0:
        inputs = torch.randn(8, WIDTHS[0], device="cuda")
    else:
        inputs = torch.empty(8, WIDTHS[rank], device="cuda")
        dist.recv(inputs, src=rank - 1)
        inputs.requires_grad_()
    outputs = stage(inputs)
    if rank < world - 1:
        dist.send(outputs.detach(), dst=rank + 1)
    return inputs, outputs


def backward(inputs: torch.Tensor, outputs: torch.Tensor) -> None:
    gradient = torch.ones_like(outputs)
    if rank < world - 1:
        dist.recv(gradient, src=rank + 1)
    outputs.backward(gradient)
    if rank > 0:
        dist.send(inputs.grad, dst=rank - 1)


for _ in range(8):
    kept = [forward() for _ in range(3)]
    for inputs, outputs in kept:
        backward(inputs, outputs)
    optimizer.step()
    optimizer.zero_grad()
    norm = torch.zeros(1, device="cuda")
    dist.all_reduce(norm, group=mine)
dist.barrier()
dist.destroy_process_group()
