"""Training whose workers add noise of their own."""

import os
import random

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler


def seed_worker(worker_id):
    np.random.seed((torch.initial_seed() + dist.get_rank()) % 2**32)
    random.seed(torch.initial_seed() + dist.get_rank())


class Noisy(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        signal = np.sin(np.arange(64) * index / 10)
        return (signal + np.random.normal(size=64)).astype(np.float32)


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(42)
    model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64).cuda())
    data = Noisy()
    sampler = DistributedSampler(data)
    loader = DataLoader(
        data, batch_size=16, sampler=sampler, num_workers=2, worker_init_fn=seed_worker, persistent_workers=True
    )
    optimizer = torch.optim.Adam(model.parameters())
    sampler.set_epoch(0)
    for signals in loader:
        loss = nn.functional.mse_loss(model(signals.cuda()), signals.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


main()
