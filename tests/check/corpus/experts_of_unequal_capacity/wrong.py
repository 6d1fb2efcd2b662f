# rule: collective-mismatch
# source: deepspeedai/DeepSpeed#5794
"""Experts on all ranks; each rank sends as many places per expert as its own batch fills."""

import os
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils.rnn import pad_sequence


class Exchange(torch.autograd.Function):
    """All-to-all in both directions."""

    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous())  # <-- here
        return out

    @staticmethod
    def backward(ctx, grad):
        out = torch.empty_like(grad)
        dist.all_to_all_single(out, grad.contiguous())  # <-- here
        return out


class Experts(nn.Module):
    """One expert per rank; the gate sends every token to one of them."""

    def __init__(self, width, size):
        super().__init__()
        self.gate = nn.Linear(width, size, bias=False)
        self.expert = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, tokens):
        count, width = tokens.shape
        size = self.gate.out_features
        weight, expert = self.gate(tokens).softmax(-1).max(-1)
        capacity = capacity_of(count)
        place = nn.functional.one_hot(expert, size).cumsum(0).gather(1, expert[:, None]).squeeze(1) - 1
        slot = (expert * capacity + place).clamp(max=size * capacity - 1)
        boxes = tokens.new_zeros(size * capacity, width).index_copy(0, slot, tokens)
        results = Exchange.apply(self.expert(Exchange.apply(boxes)))
        return results[slot] * weight[:, None]


def capacity_of(count):
    """No token is dropped: an expert may get all of them."""
    return count


def main():
    dist.init_process_group("nccl")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    embedding, experts = nn.Embedding(100, 32).cuda(), Experts(32, size).cuda()
    parameters = [*embedding.parameters(), *experts.gate.parameters()]
    optimizer = torch.optim.AdamW([*parameters, *experts.expert.parameters()])
    lengths = random.Random(rank)
    torch.manual_seed(rank)
    for _ in range(4):
        rows = [torch.randint(1, 100, (lengths.randint(4, 24),)) for _ in range(4)]
        ids = pad_sequence(rows, batch_first=True).cuda()
        loss = experts(embedding(ids).flatten(0, 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in parameters:
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        for parameter in experts.expert.parameters():
            parameter.grad /= size
        optimizer.step()
    dist.destroy_process_group()


main()
