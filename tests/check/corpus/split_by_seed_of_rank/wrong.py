# rule: split-differs
# source: TensorAuto/OpenTau#498
# ranks: 4
import os
import random

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler, random_split


def set_seed(seed, rank):
    seed += rank * 12345
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class Trajectories(Dataset):
    def __init__(self, n=200):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        obs = torch.randn(12, generator=g)
        return obs + 0.01 * torch.randn(12), torch.tanh(obs[:3])


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 3))

    def forward(self, obs):
        return self.net(obs)


def evaluate(policy, loader, device):
    policy.eval()
    totals = torch.zeros(2, device=device)
    with torch.no_grad():
        for obs, act in loader:
            err = (policy(obs.to(device)) - act.to(device)).pow(2).sum(-1)
            totals += torch.stack([err.sum(), torch.tensor(float(len(err)), device=device)])
    dist.all_reduce(totals)
    policy.train()
    return (totals[0] / totals[1]).item()


def main():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    set_seed(1234, rank)  # <-- here

    data = Trajectories()
    n_val = 40
    train_set, val_set = random_split(data, [len(data) - n_val, n_val])  # <-- here
    sampler = DistributedSampler(train_set, shuffle=True, drop_last=True)  # <-- here
    train_loader = DataLoader(train_set, batch_size=8, sampler=sampler)  # <-- here
    val_loader = DataLoader(val_set, batch_size=8, sampler=DistributedSampler(val_set, shuffle=False))  # <-- here

    policy = DDP(Policy().to(device), device_ids=[device.index])
    opt = torch.optim.Adam(policy.parameters(), 3e-4)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for obs, act in train_loader:  # <-- here
            loss = nn.functional.mse_loss(policy(obs.to(device)), act.to(device))
            opt.zero_grad()
            loss.backward()
            opt.step()
        score = evaluate(policy, val_loader, device)
        if rank == 0:
            print(f"epoch {epoch} val {score:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
