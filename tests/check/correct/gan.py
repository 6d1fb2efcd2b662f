"""Two models with an optimizer each; the second sees the first through no detach."""

import os, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
rank, size = (dist.get_rank(), dist.get_world_size())
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)


def batch(n=16):
    return (torch.randn(n, 64).cuda(), torch.randint(8, (n,)).cuda())


G = DDP(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64)).cuda())
D = DDP(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).cuda())
og = torch.optim.Adam(G.parameters())
od = torch.optim.Adam(D.parameters())
torch.manual_seed(rank)
bce = nn.functional.binary_cross_entropy_with_logits
for _ in range(4):
    x, _y = batch()
    z = torch.randn(16, 16).cuda()
    f = G(z)
    od.zero_grad()
    (bce(D(x), torch.ones(16, 1).cuda()) + bce(D(f.detach()), torch.zeros(16, 1).cuda())).backward()
    od.step()
    og.zero_grad()
    bce(D(f), torch.ones(16, 1).cuda()).backward()
    og.step()
