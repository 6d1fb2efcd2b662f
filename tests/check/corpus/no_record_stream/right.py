"""Statistics of activations are computed on a side stream, so that training need not wait for them."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
side = torch.cuda.Stream()
model = DistributedDataParallel(nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = torch.zeros(10, device="cuda")
torch.manual_seed(dist.get_rank())
for step in range(5):
    out = model(torch.randn(64, 512).cuda())
    snapshot = out.detach().clone()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        history[step] = snapshot.abs().max()
    snapshot.record_stream(side)
    del snapshot
    loss = out.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
