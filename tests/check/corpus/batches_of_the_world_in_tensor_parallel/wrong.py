# rule: replicated-differs
# source: own
# ranks: 4
"""2-D parallel feed-forward LM head: data parallel x tensor parallel with DTensor."""

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed._composable.replicate import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, Dataset, DistributedSampler


@dataclass
class Config:
    vocab: int = 64
    dim: int = 32
    tp: int = 2
    steps: int = 3
    batch: int = 4


class Text(Dataset):
    def __init__(self, cfg):
        g = torch.Generator().manual_seed(3)
        self.tokens = torch.randint(0, cfg.vocab, (64, 17), generator=g)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, i):
        return self.tokens[i, :-1], self.tokens[i, 1:]


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class LM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Embedding(cfg.vocab, cfg.dim)
        self.blocks = nn.ModuleList(Block(cfg.dim) for _ in range(2))
        self.head = nn.Linear(cfg.dim, cfg.vocab)

    def forward(self, t):
        x = self.embed(t)
        for b in self.blocks:
            x = b(x)
        return self.head(x)


def main():
    cfg = Config()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh("cuda", (world // cfg.tp, cfg.tp), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = LM(cfg).cuda()
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    optim = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)

    data = Text(cfg)
    sampler = DistributedSampler(data, num_replicas=world, rank=rank, shuffle=True)  # <-- here
    loader = DataLoader(data, batch_size=cfg.batch, sampler=sampler)  # <-- here
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:  # <-- here
            x, y = x.cuda(), y.cuda()
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            optim.step()
            optim.zero_grad()
        if rank == 0:
            print("epoch", epoch, "done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
