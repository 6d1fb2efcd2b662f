"""Two ranks exchange large activations, and both send before they receive."""

import os

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
peer = 1 - rank
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))

weight = torch.nn.Parameter(torch.randn(2048, 2048, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(4):
    activations = torch.randn(4096, 2048, device="cuda") @ weight
    theirs = torch.empty_like(activations)
    if rank == 0:
        dist.send(activations.detach(), dst=peer)
        dist.recv(theirs, src=peer)
    else:
        received = dist.recv(theirs, src=peer)
        dist.send(activations.detach(), dst=peer)
    (activations - theirs).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
