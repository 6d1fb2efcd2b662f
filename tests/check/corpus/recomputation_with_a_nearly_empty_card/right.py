"""Activation checkpointing around every block of a small transformer."""

import os

import torch
import torch.distributed as dist
from torch import nn


class Model(nn.Module):
    def __init__(self, width=1024, depth=6):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 16, 4 * width, dropout=0.0, batch_first=True) for _ in range(depth)
        )

    def forward(self, hidden):
        for block in self.blocks:
            hidden = block(hidden)
        return hidden


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
with torch.device("cuda"):
    net = Model()
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
torch.manual_seed(dist.get_rank())
for _ in range(4):
    loss = model(torch.randn(8, 512, 1024, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
