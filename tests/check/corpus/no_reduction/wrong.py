# rule: gradients-not-reduced
# source: own
"""Hand-written data parallelism: every rank trains on its own samples."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 32)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 100)

    def forward(self, tokens):
        return self.head(self.norm(self.embed(tokens)))


def average_gradients(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(1234)
    model = Net().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(5):
        tokens = torch.randint(100, (4, 16), generator=generator).to(device)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()  # <-- here
        optimizer.step()  # <-- here
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
