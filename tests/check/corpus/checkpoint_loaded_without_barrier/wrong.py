# rule: checkpoint-read-too-early
# source: huggingface/transformers#10666
# ranks: 2
"""Training that loads what rank 0 saves as soon as the file exists."""

import os
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = nn.Linear(32, 32).cuda()
path = os.path.join(tempfile.gettempdir(), f"initial-{os.environ['MASTER_PORT']}.pt")

# all ranks begin with the weights of rank 0
if rank == 0:
    torch.save(model.state_dict(), path)  # <-- here
while not os.path.exists(path):
    time.sleep(0.01)
if rank != 0:
    model.load_state_dict(torch.load(path, map_location="cuda"))  # <-- here
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(8, 32).cuda()).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
