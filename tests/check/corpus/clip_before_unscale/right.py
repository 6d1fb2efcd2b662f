"""Mixed precision training that unscales gradients before it clips them."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
model = DistributedDataParallel(nn.LSTM(16, 32, num_layers=2).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = torch.cuda.amp.GradScaler()
torch.manual_seed(dist.get_rank())

for batch in range(6):
    optimizer.zero_grad()
    with torch.cuda.amp.autocast(dtype=torch.float16):
        outputs, _ = model(torch.randn(12, 8, 16).cuda())
        loss = outputs.float().pow(2).mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    scaler.step(optimizer)
    scaler.update()
dist.destroy_process_group()
