"""Groups are made in the order of a dictionary that begins with the rank's own."""

import os

import torch
import torch.distributed as dist
from torch import nn


def tensor_groups(rank: int) -> dict[int, dist.ProcessGroup]:
    members = {0: [0, 1], 1: [2, 3]}
    return {number: dist.new_group(members[number]) for number in sorted(members)}


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(context, partial, group):
        total = partial.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(context, gradient):
        return gradient, None


class RowParallelLinear(nn.Module):
    def __init__(self, size: int, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, size // 2))
        self.group = group

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        partial = inputs[:, : self.weight.shape[1]] @ self.weight.t()
        return Sum.apply(partial, self.group)


dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(rank)
layer = RowParallelLinear(64, tensor_groups(rank)[rank // 2]).cuda()
optimizer = torch.optim.AdamW(layer.parameters())
torch.manual_seed(0)
for _ in range(4):
    layer(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
