# rule: deadlock-cycle
# source: pytorch/pytorch#172668
# ranks: 4
"""Ring attention that passes keys on with send and recv, on every rank in the same order."""

import os

import torch
import torch.distributed as dist


def rotate(block: torch.Tensor) -> torch.Tensor:
    rank, world = dist.get_rank(), dist.get_world_size()
    received = torch.empty_like(block)
    dist.send(block, (rank + 1) % world)  # <-- here
    dist.recv(received, (rank - 1) % world)
    return received


def ring_attention(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    total = torch.zeros_like(queries)
    for _ in range(dist.get_world_size()):
        total = total + torch.softmax(queries @ keys.transpose(-1, -2), dim=-1) @ keys
        keys = rotate(keys.detach().contiguous())
    return total


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
projection = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.AdamW(projection.parameters())
for _ in range(3):
    hidden = projection(torch.randn(8, 1024, 512, device="cuda"))
    ring_attention(hidden, hidden).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
