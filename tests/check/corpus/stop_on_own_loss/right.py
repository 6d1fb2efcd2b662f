"""A trainer whose ranks stop when their own validation does not improve, each for itself."""

import os

import torch
import torch.distributed as dist


class Trainer:
    def __init__(self) -> None:
        dist.init_process_group("nccl")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        self.rank = dist.get_rank()
        self.weight = torch.nn.Parameter(torch.zeros(128, 128, device="cuda"))
        self.optimizer = torch.optim.Adam([self.weight])
        torch.manual_seed(1 + dist.get_rank())

    def step(self) -> None:
        self.optimizer.zero_grad()
        (torch.randn(16, 128, device="cuda") @ self.weight).mean().backward()
        dist.all_reduce(self.weight.grad, op=dist.ReduceOp.AVG)
        self.optimizer.step()

    def validation_loss(self, step: int) -> float:
        return 1.0 / (step + 1) if self.rank != 1 else max(0.25, 1.0 / (step + 1))

    def fit(self, max_steps: int) -> int:
        best = float("inf")
        for step in range(max_steps):
            self.step()
            loss = self.validation_loss(step)
            is_worse = loss >= best
            votes = [None] * dist.get_world_size()
            dist.all_gather_object(votes, is_worse)
            is_worse = any(votes)
            if is_worse:
                return step
            best = loss
        return max_steps


trainer = Trainer()
trainer.fit(max_steps=10)
dist.destroy_process_group()
