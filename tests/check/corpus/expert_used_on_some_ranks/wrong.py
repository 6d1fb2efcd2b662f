# rule: collective-mismatch, missing-participant
# source: deepspeedai/DeepSpeed PR 4966
# ranks: 2
"""An expert whose weights are gathered only where tokens reach it, and tokens do not reach it everywhere."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


class Mixture(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(2))

    def forward(self, tokens: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        output = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            places = (chosen == number).nonzero().flatten()
            if len(places):
                output = output.index_add(0, places.cuda(), expert(tokens[places.cuda()]))  # <-- here
        return output


torch.manual_seed(0)
model = Mixture(256).cuda()
for expert in model.experts:
    fully_shard(expert)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(3):
    chosen = torch.arange(16) % 2 if rank == 0 else torch.zeros(16, dtype=torch.long)
    model(torch.randn(16, 256, device="cuda"), chosen).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
