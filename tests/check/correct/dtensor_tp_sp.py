"""Tensor and sequence parallelism with DTensor, and FSDP over the other axis."""

import os, torch, torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
rank, size = (dist.get_rank(), dist.get_world_size())
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)


from torch.distributed.tensor.parallel import (
    parallelize_module,
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    PrepareModuleInput,
)
from torch.distributed.tensor import Shard, Replicate
from torch.distributed.device_mesh import init_device_mesh

mesh = init_device_mesh("cuda", (size // 2, 2), mesh_dim_names=("dp", "tp"))


class B(nn.Module):
    def __init__(s):
        super().__init__()
        s.n = nn.LayerNorm(64)
        s.up = nn.Linear(64, 128)
        s.dn = nn.Linear(128, 64)

    def forward(s, x):
        return x + s.dn(torch.relu(s.up(s.n(x))))


m = nn.Sequential(B(), B()).cuda()
for b in m:
    parallelize_module(
        b,
        mesh["tp"],
        {
            "n": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "dn": RowwiseParallel(output_layouts=Shard(1)),
        },
    )
from torch.distributed.fsdp import fully_shard

for b in m:
    fully_shard(b, mesh=mesh["dp"])
fully_shard(m, mesh=mesh["dp"])
o = torch.optim.AdamW(m.parameters())
torch.manual_seed(mesh.get_local_rank("dp"))
for _ in range(4):
    x = torch.randn(4, 8, 64).cuda()
    x = x.chunk(2, dim=1)[mesh.get_local_rank("tp")]
    l = m(x).square().mean()
    l.backward()
    o.step()
    o.zero_grad()
