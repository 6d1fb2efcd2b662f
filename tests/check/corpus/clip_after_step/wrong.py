# rule: clip-without-effect
# source: own
# ranks: 2
"""Training of a critic that clips gradients after the update."""

import os

import torch
import torch.distributed as dist
from torch import nn


class Learner:
    """Trains a small network on random numbers."""

    def __init__(self, model, max_norm):
        self.model, self.max_norm = model, max_norm
        self.optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)

    def learn(self, observations, returns):
        loss = nn.functional.smooth_l1_loss(self.model(observations), returns)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)  # <-- here


dist.init_process_group("nccl")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
torch.manual_seed(7)
critic = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(24, 64), nn.Tanh(), nn.Linear(64, 1)).to(device))
learner = Learner(critic, max_norm=0.5)
torch.manual_seed(dist.get_rank())
for _ in range(5):
    learner.learn(torch.randn(32, 24).to(device), torch.randn(32, 1).to(device))
dist.destroy_process_group()
