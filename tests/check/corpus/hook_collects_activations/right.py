"""Watch the activations of a layer with a forward hook."""

import os

import torch
import torch.distributed as dist

SEEN = {"hidden": []}


def remember(module, args, output):
    SEEN["hidden"][:] = [output.detach()]


dist.init_process_group("nccl")
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
torch.manual_seed(3)
layers = [torch.nn.Linear(512, 512, device="cuda") for _ in range(3)]
net = torch.nn.Sequential(*layers)
net[1].register_forward_hook(remember)
ddp = torch.nn.parallel.DistributedDataParallel(net, device_ids=[local_rank])
opt = torch.optim.Adam(ddp.parameters())
torch.manual_seed(dist.get_rank())
for _ in range(8):
    x = torch.randn(1024, 512, device="cuda")
    ddp(x).square().mean().backward()
    opt.step()
    opt.zero_grad()
if dist.get_rank() == 0:
    print("mean of the last activation:", SEEN["hidden"][-1].mean().item())
