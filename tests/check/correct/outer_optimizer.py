"""DiLoCo: an outer optimizer gets a new gradient each time, and nobody clears it."""

import os
import torch
import torch.distributed as dist
import torch.nn as nn


class DiLoCo:
    def __init__(self, model, inner=2):
        self.model, self.inner = model, inner
        self.inner_opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self.global_params = [p.detach().clone().requires_grad_() for p in model.parameters()]
        self.outer_opt = torch.optim.SGD(self.global_params, lr=0.7, momentum=0.9, nesterov=True)
        self.count = 0

    def step(self):
        self.inner_opt.step()
        self.inner_opt.zero_grad()
        self.count += 1
        if self.count % self.inner == 0:
            self.outer()

    def outer(self):
        for g, p in zip(self.global_params, self.model.parameters()):
            delta = g.data - p.data
            dist.all_reduce(delta)
            delta /= dist.get_world_size()
            g.grad = delta
        self.outer_opt.step()
        with torch.no_grad():
            for g, p in zip(self.global_params, self.model.parameters()):
                p.copy_(g)


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).cuda()
    trainer = DiLoCo(model)
    gen = torch.Generator().manual_seed(10 + dist.get_rank())
    for _ in range(10):
        x, y = torch.randn(8, 16, generator=gen).cuda(), torch.randint(0, 4, (8,), generator=gen).cuda()
        nn.functional.cross_entropy(model(x), y).backward()
        trainer.step()
    dist.destroy_process_group()


main()
