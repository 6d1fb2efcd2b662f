# rule: host-read-in-loop
# source: own
# ranks: 2
"""Log the norm of each gradient."""

import os

import torch
import torch.distributed as dist
from torch import nn


def gradient_norms(model):
    norms = {}
    for name, parameter in model.named_parameters():
        norms[name] = float(parameter.grad.norm())  # <-- here
    return norms


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(5)
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, device="cuda")
    model = nn.TransformerEncoder(layer, num_layers=4, enable_nested_tensor=False)
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    torch.manual_seed(dist.get_rank())
    for _ in range(5):
        sequences = torch.randn(16, 256, 512, device="cuda")
        optimizer.zero_grad()
        model(sequences).mean().backward()
        norms = gradient_norms(model)
        optimizer.step()
    if dist.get_rank() == 0:
        print(max(norms, key=norms.get))


main()
