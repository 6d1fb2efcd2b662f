# rule: empty-cache-in-loop
# source: huggingface/transformers#31372
# ranks: 2
"""Language model training that cleans up after each step."""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=6)
    return parser.parse_args()


def run(args):
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(11)
    embed = nn.Embedding(8192, args.hidden, device="cuda")
    head = nn.Linear(args.hidden, 8192, device="cuda")
    model = nn.parallel.DistributedDataParallel(nn.Sequential(embed, head))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    torch.manual_seed(dist.get_rank())
    for _ in range(args.steps):
        tokens = torch.randint(0, 8192, (4, 513), device="cuda")
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        del logits
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        del loss
        gc.collect()
        torch.cuda.empty_cache()  # <-- here


if __name__ == "__main__":
    dist.init_process_group("nccl")
    run(parse())
    dist.destroy_process_group()
