"""Gradient accumulation that clears gradients once per update."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main(args):
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(args.seed)
    model = DDP(nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 48)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    torch.manual_seed(args.seed + dist.get_rank())
    for _ in range(args.steps):
        optimizer.zero_grad(set_to_none=True)
        for micro in range(args.accumulate):
            latents = torch.randn(args.batch, 48).to(device)
            model.require_backward_grad_sync = micro == args.accumulate - 1
            loss = nn.functional.mse_loss(model(latents), latents) / args.accumulate
            loss.backward()
        optimizer.step()
    dist.destroy_process_group()


parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=3)
parser.add_argument("--lr", type=float, default=1e-4)
parser.add_argument("--steps", type=int, default=5)
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--accumulate", type=int, default=3)
main(parser.parse_args())
