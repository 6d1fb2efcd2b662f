"""Training on padded sentences whose loss is a mean over all ranks' targets."""

import os
import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence


def batch(rng, size):
    """Sentences of different lengths, padded; padding is no target."""
    rows = [torch.randint(1, 100, (rng.randint(4, 24),)) for _ in range(size)]
    tokens = pad_sequence(rows, batch_first=True)
    targets = pad_sequence(rows, batch_first=True, padding_value=-100)
    return tokens[:, :-1].cuda(), targets[:, 1:].cuda()


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(100, 32), nn.Linear(32, 100)).cuda())
    optimizer = torch.optim.AdamW(model.parameters())
    rng = random.Random(dist.get_rank())
    torch.manual_seed(dist.get_rank())
    for _ in range(5):
        tokens, targets = batch(rng, 4)
        logits = model(tokens)
        num_targets = (targets != -100).sum().float()
        dist.all_reduce(num_targets, op=dist.ReduceOp.AVG)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / num_targets
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


main()
