"""Training on a stream that workers share."""

import itertools
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Stream(IterableDataset):
    """Numbers as if from a log that is too large for memory; each rank reads every world_size-th."""

    def __init__(self, rank, world_size):
        self.rank, self.world_size = rank, world_size

    def __iter__(self):
        worker = get_worker_info()
        start, stride = self.rank + self.world_size * worker.id, self.world_size * worker.num_workers
        for number in itertools.count(start, stride):
            yield torch.full((16,), float(number % 1000))


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
loader = DataLoader(Stream(dist.get_rank(), dist.get_world_size()), batch_size=8, num_workers=2)
model = DDP(nn.Linear(16, 4).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for batch in itertools.islice(loader, 20):
    optimizer.zero_grad(set_to_none=True)
    model(batch.cuda()).sum().backward()
    optimizer.step()
dist.destroy_process_group()
