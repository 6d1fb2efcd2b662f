# rule: replicas-diverge
# source: own
"""A denoiser that goes on from its moving average after each epoch."""

import copy
import os
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class EMA:
    def __init__(self, model, decay=0.99):
        self.decay = decay
        self.shadow = copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for s, p in zip(self.shadow.parameters(), model.parameters()):
            s.lerp_(p, 1 - self.decay)

    @torch.no_grad()
    def copy_to(self, model):
        for s, p in zip(self.shadow.parameters(), model.parameters()):
            p.copy_(s)  # <-- here


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.t = nn.Embedding(10, 32)
        self.a, self.b = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x, t):
        return self.b(torch.relu(self.a(x) + self.t(t)))


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Denoiser().cuda())
    ema = EMA(model.module)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(rank)
    for epoch in range(3):
        for _ in range(2):
            x = torch.randn(16, 8, device="cuda")
            t = torch.randint(0, 10, (16,), device="cuda")
            noise = torch.randn_like(x)
            loss = (model(x + noise, t) - noise).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            if rank == 0:
                ema.update(model.module)  # <-- here
        ema.copy_to(model.module)  # <-- here
    if rank == 0:
        torch.save(ema.shadow.state_dict(), "/tmp/_ema.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
