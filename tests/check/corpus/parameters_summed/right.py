"""Local SGD: parameters are averaged every second step."""

import os
import torch
import torch.distributed as dist
import torch.nn as nn


def sync_parameters(model):
    for p in model.parameters():
        dist.all_reduce(p.data, op=dist.ReduceOp.SUM)
        p.data /= dist.get_world_size()


def main(period=2):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(50, 100), nn.ReLU(), nn.Linear(100, 10)).cuda()
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    g = torch.Generator().manual_seed(dist.get_rank())
    for step in range(1, 9):
        x, y = torch.randn(16, 50, generator=g).cuda(), torch.randint(0, 10, (16,), generator=g).cuda()
        opt.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        opt.step()
        if step % period == 0:
            sync_parameters(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
