# rule: stale-parameters
# source: huggingface/accelerate#3256
# ranks: 2
"""FSDP training whose optimizer was made before the model was wrapped."""

import functools
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy


def build(width):
    return nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(3)])


def prepare(model):
    policy = functools.partial(size_based_auto_wrap_policy, min_num_params=4096)
    return FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=torch.cuda.current_device())


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(11)
    model = build(64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # <-- here
    model = prepare(model)
    torch.manual_seed(dist.get_rank())
    for _ in range(5):
        loss = model(torch.randn(4, 64).cuda()).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


main()
