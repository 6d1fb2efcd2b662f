# rule: out-of-memory
# source: own
# ranks: 2
"""A model that fits with its gradients, but not with the states of its optimizer."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def build(num_layers=72, width=9216):
    with torch.device("cuda"):
        return nn.Sequential(*(nn.Linear(width, width) for _ in range(num_layers)))


def train(model, optimizer):
    for _ in range(4):
        batch = torch.randn(64, 9216, device="cuda")
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()  # <-- here


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
model = DistributedDataParallel(build(), gradient_as_bucket_view=True)
torch.manual_seed(dist.get_rank())
train(model, torch.optim.AdamW(model.parameters(), lr=1e-4))
