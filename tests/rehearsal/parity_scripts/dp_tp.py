"""A transformer block, tensor parallel and data parallel by hand: `--tp` ranks share a copy of the model."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class CopyToRanks(torch.autograd.Function):
    """The identity; the gradients of all ranks add up."""

    @staticmethod
    def forward(ctx, tokens, group):
        ctx.group = group
        return tokens

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class SumOfRanks(torch.autograd.Function):
    """The sum over ranks; the gradient passes through."""

    @staticmethod
    def forward(ctx, part, group):
        total = part.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Attention(nn.Module):
    def __init__(self, hidden, heads, tp, group):
        super().__init__()
        self.heads, self.group = heads // tp, group
        self.wq, self.wk, self.wv = (nn.Linear(hidden, hidden // tp) for _ in range(3))
        self.wo = nn.Linear(hidden // tp, hidden, bias=False)

    def forward(self, tokens):
        tokens = CopyToRanks.apply(tokens, self.group)
        batch, length, _ = tokens.shape
        q, k, v = (
            layer(tokens).view(batch, length, self.heads, -1).transpose(1, 2) for layer in (self.wq, self.wk, self.wv)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return SumOfRanks.apply(self.wo(mixed.transpose(1, 2).reshape(batch, length, -1)), self.group)


class MLP(nn.Module):
    def __init__(self, hidden, tp, group):
        super().__init__()
        self.group = group
        self.up = nn.Linear(hidden, 4 * hidden // tp)
        self.down = nn.Linear(4 * hidden // tp, hidden, bias=False)

    def forward(self, tokens):
        tokens = CopyToRanks.apply(tokens, self.group)
        return SumOfRanks.apply(self.down(F.gelu(self.up(tokens))), self.group)


class Block(nn.Module):
    def __init__(self, args, group):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(args.hidden), nn.LayerNorm(args.hidden)
        self.attn = Attention(args.hidden, args.heads, args.tp, group)
        self.mlp = MLP(args.hidden, args.tp, group)
        self.dropout = nn.Dropout(args.dropout)

    def forward(self, tokens):
        tokens = tokens + self.dropout(self.attn(self.norm1(tokens)))
        return tokens + self.dropout(self.mlp(self.norm2(tokens)))


class Model(nn.Module):
    def __init__(self, args, group):
        super().__init__()
        self.embedding = nn.Embedding(args.vocab, args.hidden)
        self.layers = nn.ModuleList(Block(args, group) for _ in range(args.layers))
        self.head = nn.Linear(args.hidden, args.vocab)

    def forward(self, ids):
        tokens = self.embedding(ids)
        for layer in self.layers:
            tokens = layer(tokens)
        return self.head(tokens)


def main():
    parser = argparse.ArgumentParser()
    for name, default in (("layers", 24), ("hidden", 2048), ("heads", 4), ("vocab", 128), ("tp", 2), ("batch", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dropout", type=float, default=0.1)
    args = parser.parse_args()

    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(rank % torch.cuda.device_count())
    dp = world // args.tp
    tp_groups = [dist.new_group(list(range(first, first + args.tp))) for first in range(0, world, args.tp)]
    dp_groups = [dist.new_group(list(range(first, world, args.tp))) for first in range(args.tp)]
    tp_group, dp_group = tp_groups[rank // args.tp], dp_groups[rank % args.tp]

    torch.manual_seed(1 + rank % args.tp)
    model = Model(args, tp_group).cuda()
    for name, parameter in model.named_parameters():
        is_sharded = any(part in name for part in ("wq", "wk", "wv", "wo", "up", "down"))
        dist.broadcast(parameter.data, src=0) if not is_sharded else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(100 + rank // args.tp)
    dropout_seed = 1234 + rank // args.tp
    torch.cuda.manual_seed(dropout_seed)

    for _ in range(4):
        ids = torch.randint(args.vocab, (args.batch, 17), generator=data).cuda()
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=dp_group)
            parameter.grad /= dp
        nn.utils.clip_grad_norm_(model.parameters(), 1e6)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
