# rule: gather-without-gradient
# source: facebookresearch/SLIP#31
# ranks: 2
"""Contrastive training whose gathered features have no gradient."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class TwoTowers(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.image, self.text = nn.Linear(64, dim), nn.Linear(32, dim)
        self.scale = nn.Parameter(torch.tensor(2.6))

    def forward(self, images, texts):
        return F.normalize(self.image(images), dim=-1), F.normalize(self.text(texts), dim=-1), self.scale.exp()


def gather(features):
    parts = [torch.zeros_like(features) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, features)  # <-- here
    return torch.cat(parts)


def clip_loss(images, texts, scale):
    offset = dist.get_rank() * len(images)
    labels = offset + torch.arange(len(images), device=images.device)
    per_image = scale * images @ gather(texts).t()  # <-- here
    per_text = scale * texts @ gather(images).t()  # <-- here
    return (F.cross_entropy(per_image, labels) + F.cross_entropy(per_text, labels)) / 2


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
model = DistributedDataParallel(TwoTowers(16).cuda())
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
torch.manual_seed(dist.get_rank() + 1)
for _ in range(5):
    optimizer.zero_grad()
    clip_loss(*model(torch.randn(8, 64).cuda(), torch.randn(8, 32).cuda())).backward()
    optimizer.step()
dist.destroy_process_group()
