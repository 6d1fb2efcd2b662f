"""Local SGD whose weights are averaged for the first time after the steps that a check captures."""

import os

import torch
import torch.distributed as dist
from torch import nn

PERIOD = 5


def main() -> None:
    dist.init_process_group("nccl")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    model = nn.Linear(64, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(rank)
    for step in range(1, 13):
        loss = nn.functional.cross_entropy(model(torch.randn(16, 64).cuda()), torch.randint(8, (16,)).cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % PERIOD == 0:
            with torch.no_grad():
                for parameter in model.parameters():
                    dist.all_reduce(parameter)
                    parameter /= size
    dist.destroy_process_group()


main()
