"""The accuracy of an epoch is reduced on the card."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def reduce_mean(value):
    t = torch.tensor(value, device="cuda")
    dist.all_reduce(t)
    return (t / dist.get_world_size()).item()


def main():
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).cuda(), device_ids=[local])
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(local)
    for epoch in range(2):
        hits = seen = 0
        for _ in range(5):
            x, y = torch.rand(16, 1, 28, 28), torch.randint(0, 10, (16,))
            out = model(x.cuda())
            loss = F.cross_entropy(out, y.cuda())
            opt.zero_grad()
            loss.backward()
            opt.step()
            hits += (out.argmax(1).cpu() == y).sum().item()
            seen += len(y)
        accuracy = reduce_mean(hits / seen)
        if local == 0:
            print(f"epoch {epoch} accuracy {accuracy:.3f}")
    dist.destroy_process_group()


main()
