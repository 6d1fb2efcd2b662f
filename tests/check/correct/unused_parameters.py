"""DDP with a head that these steps do not use."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(16, 32)
        self.first, self.second = nn.Linear(32, 4), nn.Linear(32, 4)

    def forward(self, x, is_first):
        return (self.first if is_first else self.second)(torch.relu(self.body(x)))


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
model = DistributedDataParallel(TwoHeads().cuda(), find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(1 + dist.get_rank())
for step in range(100):
    x, y = torch.randn(8, 16, device="cuda"), torch.randint(0, 4, (8,), device="cuda")
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x, step % 50 < 25), y).backward()
    optimizer.step()
dist.destroy_process_group()
