"""Training on the GPU, as it was written for one."""

import os

import torch
import torch.distributed as dist
from torch import nn

DEVICE = torch.device("cuda", int(os.environ["LOCAL_RANK"]))


def make_batch(generator):
    inputs = torch.randn(16, 64, generator=generator)
    return inputs.to(DEVICE), inputs.sum(1, keepdim=True).to(DEVICE)


def main():
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).to(DEVICE)
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(6):
        inputs, targets = make_batch(generator)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
