"""Training on two nodes that shards the data by the global rank."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def loader_for(data, rank, num_replicas):
    sampler = DistributedSampler(data, num_replicas=num_replicas, rank=rank, seed=7)
    return DataLoader(data, batch_size=4, sampler=sampler), sampler


def main():
    dist.init_process_group("nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(256, 16))
    loader, sampler = loader_for(data, dist.get_rank(), dist.get_world_size())
    model = DistributedDataParallel(nn.Linear(16, 16).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for (batch,) in loader:
            optimizer.zero_grad()
            model(batch.cuda()).square().mean().backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
