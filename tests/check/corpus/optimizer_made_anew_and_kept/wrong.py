# rule: memory-grows
# source: own
# steps: 6
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Phase:
    def __init__(self, model, lr):
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)  # <-- here
        self.lr = lr


def main():
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda(), device_ids=[local])
    phases = []
    torch.manual_seed(dist.get_rank())
    for step in range(12):
        phase = Phase(model, 1e-3 * 0.9**step)  # <-- here
        phases.append(phase)  # <-- here
        x = torch.randn(64, 1024, device="cuda")
        loss = (model(x) - x).square().mean()
        phase.optimizer.zero_grad()
        loss.backward()
        phase.optimizer.step()  # <-- here
    dist.destroy_process_group()


main()
