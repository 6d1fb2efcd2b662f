"""DDP wraps the model on a side stream; what it gives back, the emptied cache frees, which waits for the card."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main() -> None:
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    net = nn.Linear(1024, 2048).cuda()
    with torch.cuda.stream(torch.cuda.Stream()):
        model = DDP(net, device_ids=[torch.cuda.current_device()])
    torch.cuda.empty_cache()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(dist.get_rank())
    for _ in range(4):
        loss = nn.functional.cross_entropy(model(torch.randn(16, 1024).cuda()), torch.randint(8, (16,)).cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.cuda.empty_cache()
    dist.destroy_process_group()


main()
