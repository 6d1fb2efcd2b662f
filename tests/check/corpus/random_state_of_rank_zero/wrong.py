# rule: random-state-shared
# source: own
# ranks: 4
import os

import torch
import torch.distributed as dist
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Dropout(0.2), nn.Linear(48, 12))

    def forward(self, x):
        return self.f(x)


def load(path, model, opt, rank):
    state = torch.load(path, map_location="cpu", weights_only=False)
    model.module.load_state_dict(state["model"])
    opt.load_state_dict(state["opt"])
    torch.set_rng_state(state["rng"])  # <-- here
    torch.cuda.set_rng_state(state["cuda_rng"])  # <-- here


def save(path, model, opt, rank):
    rng, cuda_rng = torch.get_rng_state(), torch.cuda.get_rng_state()
    if rank == 0:
        torch.save(
            {"model": model.module.state_dict(), "opt": opt.state_dict(), "rng": rng, "cuda_rng": cuda_rng}, path
        )
    dist.barrier()


def steps(model, opt, data, n):
    for _ in range(n):
        idx = torch.randint(len(data), (8,))  # <-- here
        x = data[idx].cuda()  # <-- here
        opt.zero_grad()
        nn.functional.mse_loss(model(x), x).backward()
        opt.step()


def main():
    dist.init_process_group("nccl")
    rank, local = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    torch.manual_seed(17 + rank)
    data = torch.randn(256, 12, generator=torch.Generator().manual_seed(0))
    model = nn.parallel.DistributedDataParallel(Net().cuda(), device_ids=[local])
    opt = torch.optim.Adam(model.parameters())
    steps(model, opt, data, 1)
    save("rng.pt", model, opt, rank)
    load("rng.pt", model, opt, rank)  # <-- here
    steps(model, opt, data, 1)  # <-- here
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
