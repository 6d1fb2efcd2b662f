"""Shards inside of a node, replicas over nodes."""

import os
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def build():
    layers = []
    for _ in range(3):
        layers += [nn.Linear(128, 128), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(128, 10))


def main():
    local_world = int(os.environ["LOCAL_WORLD_SIZE"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    world = int(os.environ["WORLD_SIZE"])
    mesh = init_device_mesh("cuda", (world // local_world, local_world), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    model = build().cuda()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    for i in range(4):
        x = torch.randn(16, 128, device="cuda")
        t = torch.randint(0, 10, (16,), device="cuda")
        loss = nn.functional.cross_entropy(model(x), t)
        loss.backward()
        opt.step()
        opt.zero_grad()
    dist.destroy_process_group()


main()
