"""A pipeline by hand: each stage numbers its layers from 0, and only the first and the last one read samples."""

import argparse

import torch
import torch.distributed as dist
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--pp", type=int, default=2)
parser.add_argument("--micro-batches", type=int, default=2)
parser.add_argument("--hidden", type=int, default=1024)
args = parser.parse_args()

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank % torch.cuda.device_count())
stage, replica, dp = rank % args.pp, rank // args.pp, world // args.pp
is_first, is_last = stage == 0, stage == args.pp - 1
replicas = [dist.new_group(list(range(first, world, args.pp))) for first in range(args.pp)][stage]
for first in range(0, world, args.pp):
    dist.new_group(list(range(first, first + args.pp)))

torch.manual_seed(stage)
model = nn.Sequential(*(nn.Sequential(nn.Linear(args.hidden, args.hidden), nn.Tanh()) for _ in range(4 // args.pp)))
model.cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
samples = torch.Generator().manual_seed(3 + replica)

for _ in range(3):
    optimizer.zero_grad()
    inputs, targets = (torch.randn(8, args.hidden, generator=samples) for _ in range(2))
    if is_first:
        inputs = inputs.cuda()
    if is_last:
        targets = targets.cuda()
    passes = []
    for batch in inputs.chunk(args.micro_batches):
        tokens = batch if is_first else torch.empty(batch.shape, device="cuda")
        if not is_first:
            dist.recv(tokens, rank - 1)
            tokens.requires_grad_()
        result = model(tokens)
        passes.append((tokens, result))
        if not is_last:
            dist.send(result.detach(), rank + 1)
    for (tokens, result), target in zip(passes, targets.chunk(args.micro_batches), strict=True):
        if is_last:
            loss = nn.functional.mse_loss(result, target) / args.micro_batches
            loss.backward()
        else:
            gradient = torch.empty_like(result)
            dist.recv(gradient, rank + 1)
            result.backward(gradient)
        if tokens.grad is not None:
            dist.send(tokens.grad, rank - 1)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=replicas)
        parameter.grad /= dp
    optimizer.step()
dist.destroy_process_group()
