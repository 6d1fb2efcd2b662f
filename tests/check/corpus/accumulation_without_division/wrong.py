# rule: accumulation-not-averaged
# source: openai/guided-diffusion#111
"""A training loop that accumulates gradients of micro-batches."""

import contextlib
import os
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class TrainLoop:
    def __init__(self, model, batch_size, microbatch):
        self.model, self.batch_size, self.microbatch = model, batch_size, microbatch
        self.opt = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def forward_backward(self, batch, t):
        self.opt.zero_grad()
        for i in range(0, batch.shape[0], self.microbatch):
            micro, mt = batch[i : i + self.microbatch], t[i : i + self.microbatch]
            last = i + self.microbatch >= batch.shape[0]
            ctx = contextlib.nullcontext() if last else self.model.no_sync()
            with ctx:
                noise = torch.randn_like(micro)
                loss = (self.model(micro + noise, mt) - noise).pow(2).mean()
                loss.backward()  # <-- here

    def run(self, steps):
        for _ in range(steps):
            x = torch.randn(self.batch_size, 20, device="cuda")
            self.forward_backward(x, torch.randint(0, 100, (self.batch_size,), device="cuda"))
            self.opt.step()  # <-- here


class Eps(nn.Module):
    def __init__(self):
        super().__init__()
        self.t, self.i, self.o = nn.Embedding(100, 40), nn.Linear(20, 40), nn.Linear(40, 20)

    def forward(self, x, t):
        return self.o(torch.nn.functional.silu(self.i(x) + self.t(t)))


if __name__ == "__main__":
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    model = DDP(Eps().cuda())
    torch.manual_seed(dist.get_rank())
    TrainLoop(model, 32, 8).run(4)
    dist.destroy_process_group()
