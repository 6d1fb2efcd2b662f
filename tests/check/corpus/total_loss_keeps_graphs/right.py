"""Fine-tune a small classifier and report the running loss at the end of each epoch."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train_epoch(model, optimizer, device, batches=20):
    running = 0.0
    for _ in range(batches):
        inputs = torch.randn(32, 256).to(device)
        labels = torch.randint(0, 10, (32,)).to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        running += loss.detach()
    return running / batches


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 10)).to(device)
    model = DistributedDataParallel(net, device_ids=[device.index])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1 + dist.get_rank())
    for epoch in range(3):
        mean = train_epoch(model, optimizer, device)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {float(mean):.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
