"""A graph network in float16."""

import os
from dataclasses import dataclass, field
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass
class State:
    model: nn.Module
    opt: torch.optim.Optimizer
    scaler: torch.amp.GradScaler = field(default_factory=lambda: torch.amp.GradScaler("cuda"))


class GNN(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.w1, self.w2 = nn.Linear(8, d), nn.Linear(d, 4)

    def forward(self, x, adj):
        return self.w2(adj @ torch.relu(self.w1(adj @ x)))


def train_step(state, x, adj, y):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.cross_entropy(state.model(x, adj), y)
    state.scaler.scale(loss).backward()
    state.scaler.step(state.opt)
    state.scaler.update()
    state.opt.zero_grad(set_to_none=True)


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    net = DDP(GNN().cuda())
    state = State(net, torch.optim.SGD(net.parameters(), lr=0.01))
    torch.manual_seed(dist.get_rank())
    for _ in range(5):
        x = torch.randn(20, 8, device="cuda")
        adj = torch.rand(20, 20, device="cuda").softmax(-1)
        train_step(state, x, adj, torch.randint(0, 4, (20,), device="cuda"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
