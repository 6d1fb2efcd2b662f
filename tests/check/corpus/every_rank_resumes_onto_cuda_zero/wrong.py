# rule: checkpoint-on-one-card
# source: open-mmlab/mmengine#665
# ranks: 4
"""Resume from the checkpoint that rank 0 has written."""

import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn


def build(device):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024))
    return net.to(device)


def resume(model, path):
    checkpoint = torch.load(path)  # <-- here
    model.load_state_dict(checkpoint["model"])
    return checkpoint["epoch"] + 1


def main():
    dist.init_process_group("nccl")
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}")
    torch.cuda.set_device(device)
    path = os.path.join(tempfile.gettempdir(), "resumed_onto_one_card.pt")
    model = build(device)
    if dist.get_rank() == 0:
        torch.save({"model": model.state_dict(), "epoch": 4}, path)
    dist.barrier()
    first = resume(model, path)
    model = nn.parallel.DistributedDataParallel(model, device_ids=[device.index])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    for epoch in range(first, first + 5):
        model(torch.randn(8, 1024, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


main()
