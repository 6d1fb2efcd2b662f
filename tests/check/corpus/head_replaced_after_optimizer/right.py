"""Fine-tuning that replaces the head before the optimizer is made."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Classifier(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 64), nn.ReLU())
        self.head = nn.Linear(64, num_classes)

    def forward(self, x):
        return self.head(self.body(x))


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    model = Classifier(num_classes=1000)
    model.head = nn.Linear(64, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    model = DistributedDataParallel(model.cuda())
    torch.manual_seed(dist.get_rank())
    for _ in range(5):
        optimizer.zero_grad()
        logits = model(torch.randn(16, 32).cuda())
        nn.functional.cross_entropy(logits, torch.randint(5, (16,)).cuda()).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
