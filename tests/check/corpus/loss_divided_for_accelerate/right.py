"""Gradient accumulation with Accelerate."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ACCUM = 4
accelerator = Accelerator(gradient_accumulation_steps=ACCUM)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 2))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(256, 24), torch.randint(0, 2, (256,)))
model, opt, loader = accelerator.prepare(model, opt, DataLoader(data, batch_size=8))
for x, y in loader:
    with accelerator.accumulate(model):
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        opt.step()
        opt.zero_grad()
accelerator.print("finished")
