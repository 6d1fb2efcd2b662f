"""A language model whose vocabulary and heads are cut over tp, with what Megatron-LM issue 7452 found mistakes in."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class SumOfGradients(torch.autograd.Function):
    """The identity; the gradients of all ranks add up."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

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


class KeptInParts(torch.autograd.Function):
    """A layer whose input is kept in parts: each rank keeps its share, and the backward pass gathers them again."""

    @staticmethod
    def forward(ctx, x, weight, tp):
        ctx.save_for_backward(x.chunk(tp.size, -1)[tp.rank].contiguous(), weight)
        ctx.tp = tp
        return F.linear(x, weight)

    @staticmethod
    def backward(ctx, gradient):
        part, weight = ctx.saved_tensors
        parts = [torch.empty_like(part) for _ in range(ctx.tp.size)]
        dist.all_gather(parts, part, group=ctx.tp.group_of_recomputation)
        x = torch.cat(parts, -1)
        return gradient @ weight, gradient.flatten(0, -2).t() @ x.flatten(0, -2), None


class GatherLogits(torch.autograd.Function):
    """All-gather along the vocabulary; the backward pass takes this rank's share."""

    @staticmethod
    def forward(ctx, logits, tp):
        ctx.tp = tp
        parts = [torch.empty_like(logits) for _ in range(tp.size)]
        dist.all_gather(parts, logits.contiguous(), group=tp.group)
        return torch.cat(parts, -1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.chunk(ctx.tp.size, -1)[ctx.tp.rank], None


class TensorGroup:
    """The ranks of one copy of the model, and a group of as many ranks that are not."""

    def __init__(self, size):
        rank, world = dist.get_rank(), dist.get_world_size()
        self.size, self.rank, self.dp = size, rank % size, world // size
        groups = [dist.new_group(list(range(first, first + size))) for first in range(0, world, size)]
        self.group = groups[rank // size]
        across = [dist.new_group(list(range(first, world, size))) for first in range(size)]
        self.dp_group = across[rank % size]
        self.group_of_recomputation = self.group
        self.group_of_cross_attention = self.group


class VocabParallelLoss(torch.autograd.Function):
    """Mean cross entropy with smoothed labels; each rank has the logits of its share of the vocabulary."""

    @staticmethod
    def forward(ctx, logits, labels, tp, smoothing):
        top = logits.amax(-1, keepdim=True)
        dist.all_reduce(top, dist.ReduceOp.MAX, group=tp.group)
        logits = logits - top
        size = logits.shape[-1]
        local = labels - tp.rank * size
        is_mine = (local >= 0) & (local < size)
        picked = logits.gather(-1, local.clamp(0, size - 1)[..., None])[..., 0] * is_mine
        total = logits.exp().sum(-1)
        mean = logits.mean(-1)
        dist.all_reduce(picked, group=tp.group)
        dist.all_reduce(total, group=tp.group)
        dist.all_reduce(mean, group=tp.group)
        mean = mean / tp.size
        probabilities = logits.exp() / total[..., None]
        ctx.save_for_backward(probabilities, local.clamp(0, size - 1), is_mine)
        ctx.smoothing, ctx.vocabulary = smoothing, size * tp.size
        return (total.log() - (1 - smoothing) * picked - smoothing * mean).mean()

    @staticmethod
    def backward(ctx, gradient):
        probabilities, local, is_mine = ctx.saved_tensors
        target = F.one_hot(local, probabilities.shape[-1]) * is_mine[..., None]
        wanted = (1 - ctx.smoothing) * target + ctx.smoothing / ctx.vocabulary
        return (probabilities - wanted) * gradient / local.numel(), None, None, None


class Attention(nn.Module):
    """Heads over ranks; each has a logit of its own for attending to nothing."""

    def __init__(self, hidden, heads, tp, group):
        super().__init__()
        self.group, self.heads = group, heads // tp.size
        self.query, self.key, self.value = (nn.Linear(hidden, hidden // tp.size, bias=False) for _ in range(3))
        self.sink = nn.Parameter(torch.zeros(heads // tp.size))
        self.out = nn.Linear(hidden // tp.size, hidden, bias=False)

    def forward(self, x, memory):
        x, memory = SumOfGradients.apply(x, self.group), SumOfGradients.apply(memory, self.group)
        query = self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        key, value = (layer(memory).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.key, self.value))
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        sink = 50 * self.sink.view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        mixed = torch.cat([scores, sink], -1).softmax(-1)[..., :-1] @ value
        return SumOfRanks.apply(self.out(mixed.transpose(1, 2).flatten(2)), self.group)


class Model(nn.Module):
    def __init__(self, args, tp):
        super().__init__()
        self.tp, self.gathers_output = tp, False
        self.embedding = nn.Embedding(args.vocab, args.hidden)
        self.projection = nn.Parameter(torch.empty(args.hidden, args.hidden))
        self.norm, self.last_norm = nn.LayerNorm(args.hidden), nn.LayerNorm(args.hidden)
        self.attention = Attention(args.hidden, 4, tp, tp.group)
        self.cross = Attention(args.hidden, 4, tp, tp.group_of_cross_attention)
        self.head = nn.Linear(args.hidden, args.vocab // tp.size, bias=False)

    def forward(self, ids):
        memory = self.embedding(ids)
        x = memory + KeptInParts.apply(memory, self.projection, self.tp)
        x = x + self.attention(self.norm(x), self.norm(x))
        x = x + self.cross(x, memory)
        logits = self.head(SumOfGradients.apply(self.last_norm(x), self.tp.group))
        return GatherLogits.apply(logits, self.tp) if self.gathers_output else logits


def clip(model, tp, limit):
    """Clip by the norm of the whole model; what every rank holds counts once."""
    squares = torch.zeros((), device="cuda")
    for name, parameter in model.named_parameters():
        is_cut = any(part in name for part in ("query", "key", "value", "sink", "out", "head"))
        if is_cut or tp.rank == 0:
            squares += parameter.grad.square().sum()
    dist.all_reduce(squares, group=tp.group)
    for parameter in model.parameters():
        parameter.grad *= torch.clamp(limit / squares.sqrt(), max=1)


def main():
    parser = argparse.ArgumentParser()
    for name, default in (("hidden", 512), ("vocab", 1024), ("tp", 2), ("batch", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank % torch.cuda.device_count())
    tp = TensorGroup(args.tp)
    torch.manual_seed(1 + tp.rank)
    model = Model(args, tp).cuda()
    nn.init.normal_(model.projection, std=args.hidden**-0.5)
    for name, parameter in model.named_parameters():
        if not any(part in name for part in ("query", "key", "value", "sink", "out", "head")):
            dist.broadcast(parameter.data, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(100 + rank // args.tp)
    for _ in range(3):
        text = torch.randint(args.vocab, (args.batch, 9), generator=data).cuda()
        loss = VocabParallelLoss.apply(model(text[:, :-1]), text[:, 1:], tp, 0.1)
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG, group=tp.dp_group)
        clip(model, tp, 0.1)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
