"""Each rank makes only the group it belongs to."""

import os

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))

groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
group = groups[rank // 2]

weight = torch.nn.Parameter(torch.randn(64, 64, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1)
torch.manual_seed(1 + dist.get_rank())
for _ in range(4):
    (torch.randn(8, 64, device="cuda") @ weight).sum().backward()
    dist.all_reduce(weight.grad, group=group)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
