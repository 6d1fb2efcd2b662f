"""Replicas gather their features for a contrastive loss, and all train on one constant batch, as benchmarks do."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def gather(features: torch.Tensor) -> torch.Tensor:
    """Return the features of all ranks, of which this rank's own keep their graph."""
    everyones = [torch.empty_like(features) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, features.detach().contiguous())
    everyones[dist.get_rank()] = features
    return torch.cat(everyones)


def main() -> None:
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    model = DDP(nn.ModuleDict({"image": nn.Linear(64, 32), "text": nn.Linear(48, 32)}).cuda())
    model.module.forward = lambda image, text: (model.module["image"](image), model.module["text"](text))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    images, texts = torch.full((16, 64), 0.5), torch.arange(48.0).repeat(16, 1)
    for _ in range(4):
        features = [gather(nn.functional.normalize(one, dim=-1)) for one in model(images.cuda(), texts.cuda())]
        logits = 10 * features[0] @ features[1].t()
        targets = torch.arange(len(logits), device="cuda")
        loss = (nn.functional.cross_entropy(logits, targets) + nn.functional.cross_entropy(logits.t(), targets)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


main()
