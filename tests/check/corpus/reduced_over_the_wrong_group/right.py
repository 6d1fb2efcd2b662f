"""Two replicas of a model that is cut over two ranks: dp x tp on a mesh."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh


class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class MLP(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.group = group
        self.up = nn.Linear(64, 128)
        self.down = nn.Linear(128, 64, bias=False)

    def forward(self, x):
        return Reduce.apply(self.down(torch.relu(self.up(Copy.apply(x, self.group)))), self.group)


dist.init_process_group("nccl")
mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
dp, tp = mesh.get_group("dp"), mesh.get_group("tp")
torch.manual_seed(7 + mesh.get_local_rank("tp"))
model = MLP(tp).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
torch.manual_seed(mesh.get_local_rank("dp"))
for _ in range(4):
    batch = torch.randn(16, 64).cuda()
    model(batch).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG, group=dp)
    optimizer.step()
    optimizer.zero_grad()
