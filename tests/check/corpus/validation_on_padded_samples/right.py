import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset


def make(n, seed):
    g = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(n, 16, generator=g), torch.randint(3, (n,), generator=g))


@torch.no_grad()
def validate(model, loader):
    model.eval()
    correct, seen = torch.zeros((), device="cuda"), torch.zeros((), device="cuda")
    for x, y in loader:
        correct += (model(x.cuda()).argmax(-1) == y.cuda()).sum()
        seen += len(y)
    dist.all_reduce(correct)
    dist.all_reduce(seen)
    model.train()
    return correct / seen


dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
train_set, val_set = make(160, 0), make(101, 1)
train_sampler = DistributedSampler(train_set)
train_loader = DataLoader(train_set, batch_size=10, sampler=train_sampler)
val_loader = DataLoader(Subset(val_set, range(rank, len(val_set), world)), batch_size=10)

model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 3)).cuda())
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
best = 0.0
for epoch in range(2):
    train_sampler.set_epoch(epoch)
    for x, y in train_loader:
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        opt.zero_grad()
        loss.backward()
        opt.step()
    acc = validate(model.module, val_loader).item()
    if acc > best:
        best = acc
        if rank == 0:
            torch.save(model.module.state_dict(), "best.pt")
dist.destroy_process_group()
