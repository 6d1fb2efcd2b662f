"""Contrastive training that gathers keys through autograd."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.nn.functional import all_gather


def concat_all_gather(tensor):
    return torch.cat(all_gather(tensor))


class SimCLR(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, args.dim), nn.ReLU(), nn.Linear(args.dim, 32))
        self.temperature = args.temperature

    def forward(self, first, second):
        queries, keys = F.normalize(self.encoder(first)), F.normalize(self.encoder(second))
        all_keys = concat_all_gather(keys)
        logits = torch.einsum("nc,kc->nk", queries, all_keys) / self.temperature
        labels = torch.arange(len(queries), device=queries.device) + dist.get_rank() * len(queries)
        return F.cross_entropy(logits, labels)


parser = argparse.ArgumentParser()
parser.add_argument("--dim", type=int, default=64)
parser.add_argument("--temperature", type=float, default=0.1)
args = parser.parse_args()
dist.init_process_group("nccl")
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(SimCLR(args).cuda(), device_ids=[local_rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
torch.manual_seed(local_rank)
for _ in range(5):
    views = torch.randn(2, 8, 3, 16, 16).cuda()
    loss = model(views[0], views[1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
