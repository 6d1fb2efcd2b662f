"""Ranks agree to skip a batch where any of them has a loss that is not finite."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 4)).cuda())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = TensorDataset(torch.randn(96, 20), torch.randint(0, 4, (96,)))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        if not torch.isfinite(loss):
            print("this rank's loss is not finite")
        is_bad = (~torch.isfinite(loss.detach())).float()
        dist.all_reduce(is_bad, op=dist.ReduceOp.MAX)
        if is_bad.item():
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
dist.destroy_process_group()
