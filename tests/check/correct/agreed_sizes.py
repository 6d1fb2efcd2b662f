"""Groups of one's own with local synchronization, uneven shapes that are exchanged first, and ranks that read to the end."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
if rank < 2:
    pair = dist.new_group([0, 1], use_local_synchronization=True)
    dist.all_reduce(torch.ones(4, device="cuda"), group=pair)


class Lines(Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 40 + 3 * rank

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((16,), float(index + 1000 * rank))


model = nn.Sequential(nn.Linear(16, 64), nn.Linear(64, 16)).cuda()
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(Lines(), batch_size=4, drop_last=True)
num_batches = torch.tensor(len(loader), device="cuda")
dist.all_reduce(num_batches, op=dist.ReduceOp.MIN)
for number, batch in enumerate(loader):
    if number == num_batches.item():
        break
    model(batch.cuda()).mean().backward()
    optimizer.step()
    optimizer.zero_grad()

rows = torch.randn(5 + rank, 8, device="cuda")
sizes = [torch.zeros(1, dtype=torch.long, device="cuda") for _ in range(world)]
dist.all_gather(sizes, torch.tensor([len(rows)], device="cuda"))
largest = max(int(size) for size in sizes)
padded = torch.zeros(largest, 8, device="cuda")
padded[: len(rows)] = rows
dist.all_gather([torch.empty_like(padded) for _ in range(world)], padded)
dist.destroy_process_group()
