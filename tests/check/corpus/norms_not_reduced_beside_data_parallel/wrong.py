# rule: gradients-not-reduced
# source: NVIDIA/Megatron-LM#1446
# ranks: 4
"""Tensor and sequence parallel blocks in two data parallel replicas."""

import os
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class GatherSeq(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        n = dist.get_world_size(group)
        out = torch.empty((x.shape[0] * n, *x.shape[1:]), device=x.device, dtype=x.dtype)
        dist.all_gather_into_tensor(out, x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx, g):
        n = dist.get_world_size(ctx.group)
        out = torch.empty((g.shape[0] // n, *g.shape[1:]), device=g.device, dtype=g.dtype)
        dist.reduce_scatter_tensor(out, g.contiguous(), group=ctx.group)
        return out, None


class ScatterSeq(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        n = dist.get_world_size(group)
        out = torch.empty((x.shape[0] // n, *x.shape[1:]), device=x.device, dtype=x.dtype)
        dist.reduce_scatter_tensor(out, x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx, g):
        n = dist.get_world_size(ctx.group)
        out = torch.empty((g.shape[0] * n, *g.shape[1:]), device=g.device, dtype=g.dtype)
        dist.all_gather_into_tensor(out, g.contiguous(), group=ctx.group)
        return out, None


class Block(nn.Module):
    def __init__(self, dim, tp):
        super().__init__()
        n = dist.get_world_size(tp)
        self.tp = tp
        self.norm = nn.LayerNorm(dim)
        self.norm.weight.sequence_parallel = True
        self.norm.bias.sequence_parallel = True
        self.up = nn.Linear(dim, 4 * dim // n, bias=False)
        self.down = nn.Linear(4 * dim // n, dim, bias=False)
        with torch.no_grad():
            g = torch.Generator(device="cuda").manual_seed(100 + dist.get_rank(tp))
            self.up.weight.normal_(0, 0.02, generator=g)
            self.down.weight.normal_(0, 0.02, generator=g)

    def forward(self, x):
        h = GatherSeq.apply(self.norm(x), self.tp)
        return x + ScatterSeq.apply(self.down(F.gelu(self.up(h))), self.tp)


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.set_default_device("cuda")
    tp_size = 2
    rank, world = dist.get_rank(), dist.get_world_size()
    tp = dp = None
    for start in range(0, world, tp_size):
        ranks = list(range(start, start + tp_size))
        g = dist.new_group(ranks)
        if rank in ranks:
            tp = g
    for off in range(tp_size):
        ranks = list(range(off, world, tp_size))
        g = dist.new_group(ranks)
        if rank in ranks:
            dp = g
    torch.manual_seed(0)
    model = nn.ModuleList([Block(32, tp) for _ in range(2)])
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.Generator(device="cuda").manual_seed(dist.get_rank(dp))
    for step in range(4):
        seq = torch.randn(16, 4, 32, generator=data)
        target = torch.randn(16, 4, 32, generator=data)
        me = dist.get_rank(tp)
        x, t = seq.chunk(tp_size)[me], target.chunk(tp_size)[me]
        for block in model:
            x = block(x)  # <-- here
        loss = F.mse_loss(x, t, reduction="sum") / target.numel()
        loss.backward()  # <-- here
        for p in model.parameters():
            dist.all_reduce(p.grad, group=dp)  # <-- here
            p.grad /= dist.get_world_size(dp)
        opt.step()  # <-- here
        opt.zero_grad()
    dist.destroy_process_group()


main()
