# rule: needless-find-unused-parameters
# source: huggingface/transformers#9802
# ranks: 2
"""DDP with every option that might be needed."""

import os

import torch
import torch.distributed as dist
from torch import nn


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
        self.head = nn.Linear(256, 5)

    def forward(self, inputs):
        return self.head(self.body(inputs))


def wrap(module, device):
    return nn.parallel.DistributedDataParallel(  # <-- here
        module.to(device),
        device_ids=[device.index],
        find_unused_parameters=True,  # <-- here
    )


dist.init_process_group("nccl")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
torch.manual_seed(0)
model = wrap(Classifier(), device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
torch.manual_seed(dist.get_rank())
for _ in range(6):
    labels = torch.randint(0, 5, (32,), device=device)
    loss = nn.functional.cross_entropy(model(torch.randn(32, 64, device=device)), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
