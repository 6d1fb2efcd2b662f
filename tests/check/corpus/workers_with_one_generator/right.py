"""Training whose workers have generators of their own."""

import os

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torch.utils.data import get_worker_info


class Crops(Dataset):
    def __init__(self, num_images):
        self.num_images = num_images
        self.rng = None

    def __len__(self):
        return self.num_images

    def __getitem__(self, index):
        if self.rng is None:
            worker = get_worker_info()
            self.rng = np.random.default_rng(worker.seed if worker else index)
        top, left = self.rng.integers(0, 16, size=2)
        image = np.full((3, 32, 32), index / self.num_images, dtype=np.float32)
        return torch.from_numpy(image[:, top : top + 16, left : left + 16])


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Conv2d(3, 8, 3).cuda())
torch.manual_seed(dist.get_rank())
data = Crops(256)
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for images in loader:
        optimizer.zero_grad()
        model(images.cuda()).mean().backward()
        optimizer.step()
dist.destroy_process_group()
