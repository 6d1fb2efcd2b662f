# rule: nested-launcher
# source: own
# ranks: 2
"""Started by torchrun, and starts its own processes, too."""

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


def work(local_rank, world_size):
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29631", rank=local_rank, world_size=world_size)
    train(local_rank)


def train(local_rank):
    torch.cuda.set_device(local_rank)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(16, 16).cuda(), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(4, 16).cuda()).sum().backward()
        optimizer.step()


if __name__ == "__main__":
    num_gpus = torch.cuda.device_count()
    mp.spawn(work, args=(num_gpus,), nprocs=num_gpus)  # <-- here
