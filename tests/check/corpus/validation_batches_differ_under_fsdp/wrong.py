# rule: unequal-batches, early-exit, collective-mismatch
# source: pytorch/torchtitan#1618
# ranks: 4
"""Ranks have different numbers of validation batches, and FSDP gathers weights in each."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Text(Dataset):
    def __init__(self, n, seq=16):
        self.tokens = torch.randint(0, 100, (n, seq + 1), generator=torch.Generator().manual_seed(n))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, i):
        return self.tokens[i, :-1], self.tokens[i, 1:]


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.rnn, self.out = nn.Embedding(100, 32), nn.GRU(32, 32, batch_first=True), nn.Linear(32, 100)

    def forward(self, t):
        return self.out(self.rnn(self.emb(t))[0])


class Recipe:
    def __init__(self):
        dist.init_process_group("nccl")
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.manual_seed(0)
        net = LM()
        net.rnn = FSDP(net.rnn, device_id=torch.cuda.current_device())
        self.model = FSDP(net, device_id=torch.cuda.current_device())
        self.opt = torch.optim.Adam(self.model.parameters(), 1e-3)
        self.sampler = DistributedSampler(Text(128), seed=1)
        self.train_loader = DataLoader(Text(128), batch_size=8, sampler=self.sampler)
        val = Text(42)
        mine = torch.utils.data.Subset(val, list(range(self.rank, len(val), self.world)))
        self.val_loader = DataLoader(mine, batch_size=2)

    def loss(self, x, y):
        return nn.functional.cross_entropy(self.model(x.cuda()).flatten(0, 1), y.cuda().flatten())  # <-- here

    def train(self):
        for epoch in range(2):
            self.sampler.set_epoch(epoch)
            self.model.train()
            for x, y in self.train_loader:
                self.opt.zero_grad()
                self.loss(x, y).backward()
                self.opt.step()
            self.validate()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        total = torch.zeros(1, device="cuda")
        for x, y in self.val_loader:  # <-- here
            total += self.loss(x, y)  # <-- here
        dist.all_reduce(total)  # <-- here


if __name__ == "__main__":
    Recipe().train()
