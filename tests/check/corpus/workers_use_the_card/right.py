"""A data set that moves its samples to the card in the workers."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Samples(Dataset):
    def __init__(self, device):
        self.device = device
        self.table = torch.arange(256 * 32, dtype=torch.float32).reshape(256, 32)

    def __len__(self):
        return len(self.table)

    def __getitem__(self, index):
        return self.table[index]


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(32, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    dataset = Samples(device)
    sampler = DistributedSampler(dataset)
    for batch in DataLoader(dataset, batch_size=8, sampler=sampler, num_workers=2):
        optimizer.zero_grad()
        model(batch.to(device)).mean().backward()
        optimizer.step()


main()
