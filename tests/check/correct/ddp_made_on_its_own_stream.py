"""DDP is made on a stream of its own, as Lightning does; a node's heartbeat sleeps; a mesh is made beside groups."""

import os
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl", timeout=timedelta(seconds=40))
rank, local = dist.get_rank(), int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
if rank == 0:
    threading.Thread(target=lambda: [time.sleep(50) for _ in range(100)], daemon=True).start()
pairs = [dist.new_group([first, first + 1]) for first in range(0, dist.get_world_size(), 2)]
mesh = init_device_mesh("cuda", (2, dist.get_world_size() // 2), mesh_dim_names=("dp", "tp"))

torch.manual_seed(0)
net = nn.Linear(16, 4).cuda()
with torch.cuda.stream(torch.cuda.Stream()):
    model = DDP(net, device_ids=[local])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(1 + rank)
for _ in range(6):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 16, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    shown = loss.detach().clone()
    dist.all_reduce(shown, group=pairs[rank // 2])
    dist.all_reduce(shown, group=mesh.get_group("tp"))
dist.destroy_process_group()
