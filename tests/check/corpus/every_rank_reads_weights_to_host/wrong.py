# rule: host-copies
# source: openvla/openvla#208
# ranks: 4
"""Start from pretrained weights that are a single file."""

import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn

PRETRAINED = os.path.join(tempfile.gettempdir(), "pretrained_in_host_memory.pt")


def pretrained_weights():
    return torch.load(PRETRAINED, map_location="cpu")  # <-- here


if __name__ == "__main__":
    dist.init_process_group("nccl")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = nn.Sequential(nn.Linear(4096, 8192), nn.SiLU(), nn.Linear(8192, 256))
    if rank == 0:
        torch.save(model.state_dict(), PRETRAINED)
    dist.barrier()
    model.load_state_dict(pretrained_weights())
    model = nn.parallel.DistributedDataParallel(model, device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    torch.manual_seed(rank)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(4, 4096, device="cuda")).mean().backward()
        optimizer.step()
    dist.destroy_process_group()
