# rule: memory-grows
# source: own
# ranks: 2
"""A trainer that keeps the predictions of the epoch for its metrics."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __init__(self, config):
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(self.device)
        torch.manual_seed(config["seed"])
        self.model = DDP(nn.Sequential(nn.Linear(128, 4096), nn.Tanh(), nn.Linear(4096, 64)).to(self.device))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=config["lr"])
        self.predictions = []

    def training_step(self, inputs, targets):
        outputs = self.model(inputs)
        loss = (outputs - targets).pow(2).mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.predictions.append(outputs)  # <-- here

    def fit(self, num_steps):
        torch.manual_seed(100 + dist.get_rank())
        for _ in range(num_steps):
            inputs = torch.randn(64, 128, device=self.device)
            self.training_step(inputs, torch.zeros(64, 64, device=self.device))
        return torch.cat(self.predictions).std()


dist.init_process_group(backend="nccl")
Trainer({"seed": 7, "lr": 0.05}).fit(10)
dist.destroy_process_group()
