"""The next batch is moved to the card on a stream of its own."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Prefetcher:
    """Copies the next batch while the current one trains."""

    def __init__(self, batches):
        self.batches, self.stream = iter(batches), torch.cuda.Stream()
        self.preload()

    def preload(self):
        self.next = next(self.batches, None)
        if self.next is None:
            return
        with torch.cuda.stream(self.stream):
            self.next = self.next.cuda(non_blocking=True)
            self.next = (self.next - 0.5) * 2

    def __iter__(self):
        while self.next is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
            batch = self.next
            batch.record_stream(torch.cuda.current_stream())
            self.preload()
            yield batch


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = DistributedDataParallel(nn.Linear(64, 10).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(dist.get_rank())
for batch in Prefetcher(torch.rand(16, 64, generator=generator).pin_memory() for _ in range(6)):
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
