"""A loss that combines those of two tasks."""

import os
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Multi(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 48), nn.ReLU())
        self.cls, self.reg = nn.Linear(48, 3), nn.Linear(48, 1)

    def forward(self, x):
        h = self.body(x)
        return self.cls(h), self.reg(h)


def combine(losses, weights):
    return sum(w * l for w, l in zip(weights, losses))


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
model = DDP(Multi().cuda())
opt = torch.optim.Adam(model.parameters(), 1e-3)
torch.manual_seed(dist.get_rank() + 1)
for i in range(5):
    x = torch.randn(16, 12, device="cuda")
    logits, value = model(x)
    losses = [
        nn.functional.cross_entropy(logits, torch.randint(0, 3, (16,), device="cuda")),
        (value.squeeze(1) - x.sum(1)).pow(2).mean(),
    ]
    loss = combine(losses, (1.0, 0.5))
    opt.zero_grad()
    loss.backward()
    opt.step()
dist.destroy_process_group()
