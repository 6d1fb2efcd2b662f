"""The table of long sequences is a buffer from the beginning."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Rope(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.lin = nn.Linear(d, d)
        self.register_buffer("short", torch.randn(32, d))

    def build(self, n, device):
        self.register_buffer("long", torch.randn(n, self.lin.in_features, device=device))

    def forward(self, x):
        n = x.shape[1]
        table = self.long if n > 32 else self.short
        return self.lin(x + table[:n])


def main():
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    torch.manual_seed(0)
    net = Rope()
    net.build(256, "cpu")
    model = DDP(net.cuda(), device_ids=[local])
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(local)
    lengths = [20, 48] if local == 2 else [20, 24]
    for step in range(6):
        x = torch.randn(2, lengths[step % 2], 16, generator=gen).cuda()
        opt.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        opt.step()


main()
