# rule: needless-broadcast
# source: own
# ranks: 8
# nodes: 2
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Recommender(nn.Module):
    """Item features are fixed: they come from a frozen encoder."""

    def __init__(self, items=200_000, d=256):
        super().__init__()
        g = torch.Generator().manual_seed(0)
        self.register_buffer("features", torch.randn(items, d, generator=g))  # <-- here
        self.user = nn.GRU(d, d, batch_first=True)
        self.proj = nn.Linear(d, d)

    def forward(self, history, candidates):
        h = self.user(self.features[history])[1][0]
        return (self.proj(h)[:, None] * self.features[candidates]).sum(-1)


def main():
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    torch.manual_seed(0)
    model = DDP(Recommender().cuda(), device_ids=[local])  # <-- here
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    torch.manual_seed(dist.get_rank() + 1)
    for _ in range(10):
        history = torch.randint(0, 200_000, (256, 20), device="cuda")
        candidates = torch.randint(0, 200_000, (256, 50), device="cuda")
        scores = model(history, candidates)  # <-- here
        loss = nn.functional.cross_entropy(scores, torch.zeros(256, dtype=torch.long, device="cuda"))
        opt.zero_grad()
        loss.backward()
        opt.step()
    dist.destroy_process_group()


main()
