"""Training that moves its model to the host and back between epochs, and wraps it again."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(10, 10)
        self.second = torch.nn.Linear(10, 5)

    def forward(self, x):
        return self.second(F.relu(self.first(x)))


def epoch(model, optimizer, device):
    for _ in range(2):
        x, y = torch.randn(20, 10, device="cpu"), torch.randn(20, 5)
        optimizer.zero_grad()
        F.mse_loss(model(x.to(device)), y.to(device)).backward()
        optimizer.step()


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(Net().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        model.cpu()
        torch.cuda.empty_cache()  # (another library uses the card here)
        model.to(device)
        model = DistributedDataParallel(model.module)
        epoch(model, optimizer, device)
    dist.destroy_process_group()


main()
