"""fully_shard over one axis of a mesh, replicas over the other."""

import os, torch, torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
rank, size = (dist.get_rank(), dist.get_world_size())
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)


def batch(n=16):
    return (torch.randn(n, 64).cuda(), torch.randint(8, (n,)).cuda())


from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh

mesh = init_device_mesh("cuda", (2, size // 2), mesh_dim_names=("r", "s"))
m = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64)) for _ in range(3)], nn.Linear(64, 8)).cuda()
for b in m:
    fully_shard(b, mesh=mesh)
fully_shard(m, mesh=mesh)
o = torch.optim.AdamW(m.parameters())
torch.manual_seed(rank)
for _ in range(5):
    x, y = batch()
    l = nn.functional.cross_entropy(m(x), y)
    l.backward()
    torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    o.step()
    o.zero_grad()
