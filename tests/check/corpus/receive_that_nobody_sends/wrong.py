# rule: p2p-mismatch
# source: own
# ranks: 4
"""A pipeline whose last stage is told to expect a message that its neighbour does not send."""

import os

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
stage = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)

for step in range(3):
    hidden = torch.randn(32, 256, device="cuda")
    if rank > 0:
        dist.recv(hidden, src=rank - 1)  # <-- here
    hidden = stage(hidden)
    if rank < world - 2:
        dist.send(hidden.detach(), dst=rank + 1)
    hidden.mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
dist.destroy_process_group()
