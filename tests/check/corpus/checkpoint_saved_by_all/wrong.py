# rule: checkpoint-written-by-all
# source: own
# ranks: 2
"""Training whose ranks all save to one path."""

import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Checkpoint:
    def __init__(self, folder):
        self.path = os.path.join(folder, f"latest-{os.environ['MASTER_PORT']}.pt")

    def save(self, model, optimizer, step):
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, self.path)  # <-- here


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(32, 32).cuda())
    optimizer = torch.optim.AdamW(model.parameters())
    checkpoint = Checkpoint(tempfile.gettempdir())
    torch.manual_seed(dist.get_rank())
    for step in range(6):
        optimizer.zero_grad()
        model(torch.randn(8, 32).cuda()).square().mean().backward()
        optimizer.step()
        if step % 2 == 1:
            checkpoint.save(model, optimizer, step)
    dist.destroy_process_group()


main()
