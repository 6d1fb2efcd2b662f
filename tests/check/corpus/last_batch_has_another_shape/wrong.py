# rule: collective-mismatch
# source: NVIDIA/nccl#1417
# ranks: 2
"""Predictions are gathered as they are, and the last batch of one rank is smaller."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

WIDTH = 32


def gather(predictions: torch.Tensor) -> torch.Tensor:
    gathered = [torch.empty_like(predictions) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, predictions.contiguous())  # <-- here
    return torch.cat(gathered)


def main() -> None:
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Linear(WIDTH, 4).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(3):
        loss = model(torch.randn(8, WIDTH).cuda()).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    num_samples = 40 if dist.get_rank() == 0 else 37
    samples = TensorDataset(torch.randn(num_samples, WIDTH))
    loader = DataLoader(samples, batch_size=8)
    model.eval()
    with torch.no_grad():
        parts = [gather(model.module(inputs.cuda())) for (inputs,) in loader]
    print(torch.cat(parts).shape)
    dist.destroy_process_group()


main()
