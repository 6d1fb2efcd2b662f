# rule: host-read-in-loop
# source: pytorch/torchtune#522
# ranks: 2
"""Gradient accumulation with a log line for every micro-batch."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Recipe:
    def __init__(self, micro_batches=4):
        dist.init_process_group("nccl")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.manual_seed(0)
        with torch.device("cuda"):
            blocks = [nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(12)]
            self.model = DDP(nn.Sequential(*blocks))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.micro_batches = micro_batches
        self.log = []
        torch.manual_seed(dist.get_rank())

    def micro_step(self):
        batch = torch.randn(64, 1024, device="cuda")
        loss = self.model(batch).pow(2).mean() / self.micro_batches
        loss.backward()
        return loss.detach()

    def train(self, steps):
        for _ in range(steps):
            total = 0.0
            with self.model.no_sync():
                for _ in range(self.micro_batches - 1):
                    total += self.micro_step().item()  # <-- here
            total += self.micro_step().item()  # <-- here
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.log.append(total)


Recipe().train(5)
