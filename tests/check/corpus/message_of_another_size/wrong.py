# rule: p2p-mismatch
# source: own
# ranks: 2
"""The receiver of a pipeline expects half a micro-batch."""

import os

import torch
import torch.distributed as dist

CONFIG = {"hidden": 512, "micro_batch": 16, "micro_batches": 2}


def run_stage(rank: int, stage: torch.nn.Module, config: dict[str, int]) -> None:
    shape = (config["micro_batch"], config["hidden"])
    for _ in range(config["micro_batches"]):
        if rank == 0:
            output = stage(torch.randn(shape, device="cuda"))
            dist.send(output.detach(), dst=1)  # <-- here
            gradient = torch.empty_like(output)
            dist.recv(gradient, src=1)
            output.backward(gradient)
        else:
            received = torch.empty(shape[0] // 2, shape[1], device="cuda")
            dist.recv(received, src=0)  # <-- here
            received.requires_grad_()
            stage(received).mean().backward()
            dist.send(received.grad, dst=0)


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
stage = torch.nn.Linear(CONFIG["hidden"], CONFIG["hidden"]).cuda()
optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
for _ in range(3):
    run_stage(dist.get_rank(), stage, CONFIG)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
