"""FullyShardedDataParallel with its own clipping."""

import os, torch, torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
rank, size = (dist.get_rank(), dist.get_world_size())
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)


def batch(n=16):
    return (torch.randn(n, 64).cuda(), torch.randint(8, (n,)).cuda())


from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

m = FSDP(
    nn.Sequential(
        *[FSDP(nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64)).cuda(), use_orig_params=True) for _ in range(3)],
        nn.Linear(64, 8),
    ).cuda(),
    use_orig_params=True,
)
o = torch.optim.AdamW(m.parameters())
torch.manual_seed(rank)
for _ in range(5):
    x, y = batch()
    l = nn.functional.cross_entropy(m(x), y)
    l.backward()
    m.clip_grad_norm_(1.0)
    o.step()
    o.zero_grad()
