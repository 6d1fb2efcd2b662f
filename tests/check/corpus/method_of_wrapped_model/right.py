"""Data parallel training whose loss is computed by the forward pass of DDP."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Recognizer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 10)

    def compute_loss(self, sounds, labels):
        states, _ = self.encoder(sounds)
        return nn.functional.cross_entropy(self.head(states[:, -1]), labels)

    def forward(self, sounds, labels):
        return self.compute_loss(sounds, labels)


def train(args):
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    model = DDP(Recognizer(args.width).to(local_rank), device_ids=[local_rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(args.iterations):
        sounds = torch.randn(4, 20, args.width, generator=generator).to(local_rank)
        labels = torch.randint(10, (4,), generator=generator).to(local_rank)
        optimizer.zero_grad()
        loss = model(sounds, labels)
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--iterations", type=int, default=6)
    dist.init_process_group("nccl")
    train(parser.parse_args())
    dist.destroy_process_group()
