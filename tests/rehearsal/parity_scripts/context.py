"""Context parallelism by hand: ranks hold parts of one sequence, and attention gathers keys and values."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class GatherSequence(torch.autograd.Function):
    """All-gather along the sequence; the backward pass sums what all ranks have for a part."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        out = x.new_empty(x.shape[0] * group.size(), *x.shape[1:])
        dist.all_gather_into_tensor(out, x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx, gradient):
        out = gradient.new_empty(gradient.shape[0] // ctx.group.size(), *gradient.shape[1:])
        dist.reduce_scatter_tensor(out, gradient.contiguous(), group=ctx.group)
        return out, None


class Model(nn.Module):
    def __init__(self, hidden, group):
        super().__init__()
        self.group = group
        self.embedding, self.head = nn.Embedding(50, hidden), nn.Linear(hidden, 50)
        self.query, self.key_value = nn.Linear(hidden, hidden), nn.Linear(hidden, 2 * hidden)

    def forward(self, tokens):
        x = self.embedding(tokens)
        key, value = GatherSequence.apply(self.key_value(x), self.group).chunk(2, -1)
        query, key, value = (part.transpose(0, 1) for part in (self.query(x), key, value))
        return self.head(x + F.scaled_dot_product_attention(query, key, value).transpose(0, 1))


parser = argparse.ArgumentParser()
parser.add_argument("--cp", type=int, default=2)
parser.add_argument("--hidden", type=int, default=512)
args = parser.parse_args()
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank % torch.cuda.device_count())
groups = [dist.new_group(list(range(first, first + args.cp))) for first in range(0, world, args.cp)]
torch.manual_seed(0)
model = Model(args.hidden, groups[rank // args.cp]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.Generator().manual_seed(rank // args.cp)
for _ in range(3):
    text = torch.randint(50, (17, 2), generator=data).cuda()
    tokens = text[:-1].chunk(args.cp)[rank % args.cp]
    targets = text[1:].chunk(args.cp)[rank % args.cp]
    logits = model(tokens)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / (16 * 2)
    loss = loss * args.cp
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
    optimizer.step()
dist.destroy_process_group()
