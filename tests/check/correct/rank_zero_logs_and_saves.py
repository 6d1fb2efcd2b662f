"""Rank 0 evaluates without the wrapper, logs and saves, and the others wait for it; sends and receives on two lines."""

import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(50, 16), torch.randint(3, (50,)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=3, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 3)).cuda())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    history = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        model.train()
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs.cuda()), targets.cuda())
            loss.backward()
            optimizer.step()
        total = loss.detach().clone()
        dist.reduce(total, dst=0)
        if rank == 0:
            model.module.eval()
            with torch.no_grad():
                accuracy = (model.module(data.tensors[0].cuda()).argmax(1).cpu() == data.tensors[1]).float().mean()
            history.append({"loss": total.item(), "accuracy": accuracy.item()})
            torch.save({"model": model.module.state_dict()}, f"epoch{epoch}.pt")
        dist.barrier()
        seed = torch.zeros(1, dtype=torch.long, device="cuda")
        if rank == 0:
            seed.fill_(epoch)
            dist.broadcast(seed, src=0)
        else:
            dist.broadcast(seed, src=0)
    if rank == 0:
        with open("history.json", "w", encoding="utf-8") as file:
            json.dump(history, file)
    dist.destroy_process_group()


main()
