# rule: summed-not-averaged
# source: own
# ranks: 4
"""Manual data parallelism with one all-reduce per parameter."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=4)
    return parser.parse_args()


def main(args):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 5)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    torch.manual_seed(dist.get_rank())
    for _ in range(args.steps):
        features, labels = torch.randn(10, 50).cuda(), torch.randint(5, (10,)).cuda()
        loss = nn.functional.cross_entropy(model(features), labels)
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)  # <-- here
        optimizer.step()  # <-- here


main(parse())
