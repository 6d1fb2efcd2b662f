# rule: gradients-not-reduced
# source: own
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous()
        dist.all_reduce(g)
        return g


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g


class ParallelMLP(nn.Module):
    def __init__(self, dim, hidden, tp):
        super().__init__()
        self.up = nn.Linear(dim, hidden // tp)
        self.down = nn.Linear(hidden // tp, dim, bias=False)

    def forward(self, x):
        return _Reduce.apply(self.down(F.gelu(self.up(_Copy.apply(x)))))


class Layer(nn.Module):
    def __init__(self, dim, tp):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.mlp = ParallelMLP(dim, 4 * dim, tp)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.drop(self.mlp(self.norm(x)))  # <-- here


def main():
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    norm_and_head = [nn.Embedding(40, 16), nn.Linear(16, 40)]
    torch.manual_seed(1 + rank)  # shards start with values of their own
    layers = [Layer(16, world) for _ in range(2)]
    model = nn.Sequential(norm_and_head[0], *layers, norm_and_head[1]).cuda()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.cuda.manual_seed(100 + rank)  # <-- here
    g = torch.Generator().manual_seed(5)
    for step in range(3):
        tokens = torch.randint(0, 40, (4, 13), generator=g).cuda()
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
