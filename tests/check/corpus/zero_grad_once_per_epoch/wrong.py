# rule: missing-zero-grad
# source: pytorch/pytorch#47175
# ranks: 2
"""Sharded training that clears gradients once per epoch."""

import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Trainer:
    def __init__(self):
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(self.device)
        torch.manual_seed(0)
        layers = [torch.nn.Linear(64, 64, device=self.device) for _ in range(3)]
        self.model = torch.nn.Sequential(*layers)
        for layer in layers:
            fully_shard(layer)
        fully_shard(self.model)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        data = TensorDataset(torch.randn(64, 64), torch.randn(64, 64))
        self.sampler = DistributedSampler(data)
        self.loader = DataLoader(data, batch_size=4, sampler=self.sampler)

    def train_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        self.optimizer.zero_grad()
        for inputs, targets in self.loader:
            output = self.model(inputs.to(self.device))
            torch.nn.functional.mse_loss(output, targets.to(self.device)).backward()  # <-- here
            self.optimizer.step()  # <-- here

    def fit(self, epochs):
        for epoch in range(epochs):
            self.train_epoch(epoch)


dist.init_process_group("nccl")
Trainer().fit(2)
dist.destroy_process_group()
