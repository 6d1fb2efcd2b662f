"""A learning rate that is warmed up, and logged by rank 0."""

import os
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR


def log(step, loss, lr):
    print(f"step={step} loss={loss:.4f} lr={lr:.2e}", flush=True)


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = DDP(nn.Sequential(nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1)).cuda())
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    sched = SequentialLR(opt, [LinearLR(opt, 0.1, 1.0, 3), CosineAnnealingLR(opt, 10)], milestones=[3])
    torch.manual_seed(dist.get_rank())
    for step in range(6):
        x = torch.randn(32, 64, device="cuda")
        loss = (model(x).squeeze() - x.mean(1)).abs().mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        if dist.get_rank() == 0:
            log(step, loss.item(), sched.get_last_lr()[0])
    dist.destroy_process_group()


main()
