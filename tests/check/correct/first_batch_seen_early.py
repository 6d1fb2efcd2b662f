"""Each epoch takes a look at the first batch before it tells the sampler its number, and then reads all of them."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 16), torch.randint(3, (64,)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = DDP(nn.Linear(16, 3).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        batch_size = len(next(iter(loader))[0])
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {len(loader)} batches of {batch_size}")
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs.cuda()), targets.cuda()).backward()
            optimizer.step()
    dist.destroy_process_group()


main()
