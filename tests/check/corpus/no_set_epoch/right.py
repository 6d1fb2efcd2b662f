"""Training for several epochs whose sampler is told the epoch."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("nccl")
gpu = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(gpu)
torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 8), torch.randint(3, (32,)))
sampler = DistributedSampler(data, shuffle=True)
loader = DataLoader(data, batch_size=8, sampler=sampler, pin_memory=True)
model = DistributedDataParallel(nn.Linear(8, 3).to(gpu), device_ids=[gpu])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(5):
    sampler.set_epoch(epoch)
    for inputs, labels in loader:
        loss = nn.functional.cross_entropy(model(inputs.to(gpu)), labels.to(gpu))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
dist.destroy_process_group()
