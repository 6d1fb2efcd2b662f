# rule: clip-by-local-norm
# source: own
# ranks: 2
"""FSDP training that clips each rank's shards by their own norm."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
model = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True), num_layers=2)
model = FSDP(
    model, auto_wrap_policy=ModuleWrapPolicy({nn.TransformerEncoderLayer}), device_id=torch.cuda.current_device()
)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
torch.manual_seed(dist.get_rank())
for _ in range(5):
    loss = model(torch.randn(2, 10, 32).cuda()).mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)  # <-- here
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
