"""A block that is used three times is recomputed by checkpoints that are not re-entrant."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint


class Recurrent(nn.Module):
    """The same block is applied three times, as in a weight-shared transformer."""

    def __init__(self, d=32):
        super().__init__()
        self.inp = nn.Linear(d, d)
        self.block = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, d), nn.GELU(), nn.Linear(d, d))
        self.out = nn.Linear(d, d)

    def forward(self, x):
        x = self.inp(x)
        for _ in range(3):
            x = x + checkpoint(self.block, x, use_reentrant=False)
        return self.out(x)


def main():
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    torch.manual_seed(0)
    model = DDP(Recurrent().cuda(), device_ids=[local])
    opt = torch.optim.AdamW(model.parameters())
    torch.manual_seed(local + 1)
    for _ in range(5):
        x = torch.randn(8, 32, device="cuda")
        loss = (model(x) - x).square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()


if __name__ == "__main__":
    main()
