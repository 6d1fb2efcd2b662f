# rule: gradients-not-reduced
# source: x.com/jxmnop/status/1778520637193240892
"""The loop takes the model as it is in some steps, and wraps it in others."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
torch.manual_seed(dist.get_rank())


def model_of(step):
    if step % 2 == 0:
        return model
    return DistributedDataParallel(model)


for step in range(4):
    inputs = torch.randn(16, 64).cuda()
    embeddings = model_of(step)(inputs)
    labels = torch.arange(8).repeat(2).cuda()
    loss = nn.functional.cross_entropy(embeddings @ embeddings.T, labels)
    optimizer.zero_grad()
    loss.backward()  # <-- here
    optimizer.step()  # <-- here
dist.destroy_process_group()
