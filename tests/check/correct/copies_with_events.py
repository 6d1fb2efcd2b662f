"""Pinned buffers and copies to the host whose events are awaited or polled; DDP made on a side stream."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
with torch.cuda.stream(torch.cuda.Stream()):  # as for CUDA graphs, and as Lightning does
    model = DDP(nn.Linear(256, 256).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
staging = [torch.empty(64, 256, pin_memory=True) for _ in range(2)]
copied = [torch.cuda.Event() for _ in staging]
on_host, read = torch.zeros(2, pin_memory=True), torch.cuda.Event()
total = 0.0
for step in range(6):
    slot = step % 2
    if step > 1:
        copied[slot].synchronize()
    staging[slot].numpy()[...] = torch.randn(64, 256).numpy()
    x = staging[slot].to("cuda", non_blocking=True)
    copied[slot].record()
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    on_host.copy_(torch.stack([loss.detach(), x.mean()]), non_blocking=True)
    read.record()
    while not read.query():
        pass
    total += sum(on_host.tolist())
    later = x.mean(1).to("cpu", non_blocking=True).numpy()
    torch.cuda.synchronize()
    total += float(later.sum())
print(total)
dist.destroy_process_group()
