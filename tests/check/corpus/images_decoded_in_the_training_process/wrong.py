# rule: input-bound
# source: own
# ranks: 2
"""Images that are decoded while the training step waits."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Images(Dataset):
    """Each image takes a while to decode."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(0.015)
        return torch.full((3, 32, 32), float(index)), index % 10


def make_loader(dataset):
    sampler = DistributedSampler(dataset, shuffle=False)
    return DataLoader(dataset, batch_size=4, sampler=sampler)


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 30 * 30, 10)).cuda()
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for images, labels in make_loader(Images()):  # <-- here
    loss = nn.functional.cross_entropy(model(images.cuda()), labels.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
