# rule: p2p-mismatch, deadlock-cycle
# source: own
# ranks: 4
"""Stages of a pipeline count their neighbours within the stage list, and one is off by one."""

import os

import torch
import torch.distributed as dist

STAGES = [0, 1, 2, 3]


class Stage:
    def __init__(self) -> None:
        dist.init_process_group("nccl")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        self.place = STAGES.index(dist.get_rank())
        self.layer = torch.nn.Linear(1024, 1024).cuda()
        self.optimizer = torch.optim.SGD(self.layer.parameters(), lr=0.1)

    def run(self) -> None:
        hidden = torch.randn(512, 1024, device="cuda")
        if self.place > 0:
            source = STAGES[max(self.place - 2, 0)]
            dist.recv(hidden, src=source)  # <-- here
        hidden = self.layer(hidden)
        if self.place < len(STAGES) - 1:
            dist.send(hidden.detach(), dst=STAGES[self.place + 1])
        hidden.mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


stage = Stage()
for _ in range(3):
    stage.run()
dist.destroy_process_group()
