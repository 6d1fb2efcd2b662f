"""Experts are replicated over dp, and divided by all ranks that sent them tokens."""

import os
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh


class Experts(nn.Module):
    def __init__(self, mesh, d=16, per_rank=2):
        super().__init__()
        self.group = mesh["ep"].get_group()
        self.n = mesh["ep"].size()
        g = torch.Generator().manual_seed(50 + mesh["ep"].get_local_rank())
        self.w1 = nn.Parameter(torch.randn(per_rank, d, 4 * d, generator=g) * 0.1)
        self.w2 = nn.Parameter(torch.randn(per_rank, 4 * d, d, generator=g) * 0.1)
        for p in (self.w1, self.w2):
            p.is_expert = True

    def forward(self, x):
        x = dist.nn.functional.all_to_all_single(torch.empty_like(x), x, group=self.group)
        h = x.view(2, -1, x.shape[-1])
        h = torch.bmm(torch.relu(torch.bmm(h, self.w1)), self.w2).view_as(x)
        return dist.nn.functional.all_to_all_single(torch.empty_like(h), h, group=self.group)


def reduce_gradients(model, mesh):
    world = dist.get_world_size()
    for p in model.parameters():
        if p.grad is None:
            continue
        if getattr(p, "is_expert", False):
            dist.all_reduce(p.grad, group=mesh["dp"].get_group())
            p.grad.div_(world)
            continue
        dist.all_reduce(p.grad)
        p.grad.div_(world)


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "ep"))
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(8, 16), Experts(mesh), nn.Linear(16, 4)).cuda()
    optim = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(dist.get_rank())
    for i in range(4):
        x, y = torch.randn(32, 8).cuda(), torch.randn(32, 4).cuda()
        loss = nn.functional.mse_loss(model(x), y)
        optim.zero_grad()
        loss.backward()
        reduce_gradients(model, mesh)
        optim.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    import torch.distributed.nn.functional

    main()
