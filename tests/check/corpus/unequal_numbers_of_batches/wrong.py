# rule: unequal-batches
# source: pytorch/pytorch#141069
# ranks: 2
"""Each rank reads its own files, of which one has more samples than the other."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--samples", type=int, nargs="+", default=[80, 64])
args = parser.parse_args()

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))

num_samples = args.samples[rank]
generator = torch.Generator().manual_seed(rank)
shard = TensorDataset(torch.randn(num_samples, 16, generator=generator), torch.ones(num_samples, 1))
loader = DataLoader(shard, batch_size=args.batch_size, shuffle=True)
model = DistributedDataParallel(nn.Linear(16, 1).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for inputs, targets in loader:  # <-- here
    loss = nn.functional.mse_loss(model(inputs.cuda()), targets.cuda())
    optimizer.zero_grad()
    loss.backward()  # <-- here
    optimizer.step()
dist.destroy_process_group()
