"""Metric learning whose optimizer holds the weights of the loss, too."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class MarginLoss(nn.Module):
    """A classifier with weights of its own, as face recognition uses."""

    def __init__(self, num_features, num_classes):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(num_classes, num_features) * 0.01)

    def forward(self, features, labels):
        cosine = nn.functional.normalize(features) @ nn.functional.normalize(self.weight).t()
        return nn.functional.cross_entropy(30 * cosine, labels)


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
backbone = DDP(nn.Sequential(nn.Linear(64, 32), nn.PReLU(), nn.Linear(32, 16)).cuda())
criterion = DDP(MarginLoss(16, 100).cuda())
optimizer = torch.optim.SGD([*backbone.parameters(), *criterion.parameters()], lr=0.1)
torch.manual_seed(dist.get_rank())
for step in range(6):
    faces, names = torch.randn(8, 64).cuda(), torch.randint(100, (8,)).cuda()
    optimizer.zero_grad()
    criterion.zero_grad()
    criterion(backbone(faces), names).backward()
    optimizer.step()
dist.destroy_process_group()
