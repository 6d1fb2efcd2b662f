"""Training that makes its loader anew for each epoch, with a seed of its own."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Lines(Dataset):
    def __init__(self, rank, world_size):
        generator = torch.Generator().manual_seed(1234)
        self.tokens = torch.randint(100, (64, 16), generator=generator)[rank::world_size]

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return self.tokens[index]


def train_epoch(model, optimizer, data, seed):
    loader = DataLoader(data, batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(seed))
    for tokens in loader:
        tokens = tokens.cuda()
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Embedding(100, 32), nn.Linear(32, 100)).cuda())
optimizer = torch.optim.AdamW(model.parameters())
data = Lines(dist.get_rank(), dist.get_world_size())
for epoch in range(4):
    train_epoch(model, optimizer, data, seed=42 + epoch)
dist.destroy_process_group()
