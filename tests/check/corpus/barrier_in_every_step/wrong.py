# rule: barrier-in-loop
# source: own
# ranks: 4
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class TwoTower(nn.Module):
    def __init__(self, users=20000, items=5000, d=64):
        super().__init__()
        self.u, self.i = nn.Embedding(users, d), nn.Embedding(items, d)
        self.fu = nn.Sequential(nn.Linear(d, 256), nn.ReLU(), nn.Linear(256, d))
        self.fi = nn.Sequential(nn.Linear(d, 256), nn.ReLU(), nn.Linear(256, d))

    def forward(self, u, i):
        return self.fu(self.u(u)) @ self.fi(self.i(i)).T


def main():
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    torch.manual_seed(0)
    model = DDP(TwoTower().cuda(), device_ids=[local])
    opt = torch.optim.Adagrad(model.parameters(), lr=0.05)
    torch.manual_seed(dist.get_rank() + 1)
    for step in range(50):
        u = torch.randint(0, 20000, (512,), device="cuda")
        i = torch.randint(0, 5000, (512,), device="cuda")
        loss = nn.functional.cross_entropy(model(u, i), torch.arange(512, device="cuda"))
        opt.zero_grad()
        loss.backward()
        opt.step()
        dist.barrier()  # <-- here
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "/tmp/two_tower_e13.pt")
    dist.barrier()
    dist.destroy_process_group()


main()
