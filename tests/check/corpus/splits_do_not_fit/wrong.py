# rule: collective-mismatch
# source: own
# ranks: 2
"""Tokens are sent to experts by counts that the receivers compute differently."""

import os

import torch
import torch.distributed as dist

HIDDEN = 128
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
router_counts = [[24, 8], [12, 20]]
expert = torch.nn.Linear(HIDDEN, HIDDEN).cuda()
optimizer = torch.optim.AdamW(expert.parameters())

for step in range(3):
    tokens = torch.randn(32, HIDDEN, device="cuda")
    sent = router_counts[rank]
    received = router_counts[rank]
    arrived = torch.empty(sum(received), HIDDEN, device="cuda")
    dist.all_to_all_single(arrived, tokens, output_split_sizes=received, input_split_sizes=sent)  # <-- here
    expert(arrived).mean().backward()
    for parameter in expert.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
