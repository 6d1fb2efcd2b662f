"""All ranks make one mesh, and each half takes its row."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard


def setup():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    return dist.get_rank()


def build(mesh):
    torch.manual_seed(dist.get_rank() // 2)  # student and teacher differ
    model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(3)]).cuda()
    for block in model:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main():
    rank = setup()
    student, teacher = [0, 1], [2, 3]
    whole = init_device_mesh("cuda", (2, 2), mesh_dim_names=("role", "shard"))
    mesh = whole["shard"]
    model = build(mesh)
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(4):
        torch.manual_seed(10 * step + rank)
        x = torch.randn(8, 64).cuda()
        loss = nn.functional.mse_loss(model(x), x)
        loss.backward()
        opt.step()
        opt.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
