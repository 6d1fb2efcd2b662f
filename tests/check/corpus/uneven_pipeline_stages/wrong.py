# rule: slow-stage
# source: own
# ranks: 2
"""A pipeline of two stages, cut by hand."""

import os

import torch
import torch.distributed as dist
from torch import nn

WIDTH, MICRO_BATCHES = 4096, 4
LAYERS = {0: 2, 1: 10}  # layers of each stage


def build(stage):
    torch.manual_seed(stage)
    with torch.device("cuda"):
        return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS[stage])))


def forward_backward(stage, layers):
    if stage == 0:
        outputs = []
        for _ in range(MICRO_BATCHES):
            outputs.append(layers(torch.randn(4096, WIDTH, device="cuda")))
            dist.send(outputs[-1].detach(), dst=1)
        for output in outputs:
            gradient = torch.empty_like(output)
            dist.recv(gradient, src=1)
            output.backward(gradient)
        return
    gradients = []
    for _ in range(MICRO_BATCHES):
        hidden = torch.empty(4096, WIDTH, device="cuda")
        dist.recv(hidden, src=0)
        hidden.requires_grad_()
        layers(hidden).square().mean().backward()  # <-- here
        gradients.append(hidden.grad)
    for gradient in gradients:
        dist.send(gradient, dst=0)


dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
stage_layers = build(rank)
optimizer = torch.optim.SGD(stage_layers.parameters(), lr=1e-3)
for _ in range(4):
    optimizer.zero_grad()
    forward_backward(rank, stage_layers)
    optimizer.step()
