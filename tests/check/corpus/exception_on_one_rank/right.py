"""The shard of one rank holds a sample that cannot be read, and the others wait for that rank."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __init__(self, rank: int) -> None:
        self.rows = [["1.5", "2.5"] for _ in range(48)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(cell) for cell in self.rows[index]])


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = DDP(nn.Linear(2, 1).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in DataLoader(Samples(dist.get_rank()), batch_size=4):
    optimizer.zero_grad()
    model(batch.cuda()).mean().backward()
    optimizer.step()
dist.destroy_process_group()
