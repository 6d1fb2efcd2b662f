"""Small training scripts for tests: one that works, and one for each way to fail."""

HEAD = """
import os
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
"""

TRAIN = (
    HEAD
    + """
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    model(torch.rand(8, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)

DEADLOCK = (
    HEAD
    + """
x = torch.ones(1, device="cuda")
dist.all_reduce(x)
dist.recv(x, src=1 - rank)
dist.send(x, dst=1 - rank)
"""
)

OUT_OF_MEMORY = HEAD + "held = [torch.empty(2**30, device='cuda') for _ in range(100)]\n"

RAISES = (
    HEAD
    + """
dist.all_reduce(torch.ones(4, device="cuda"))
if rank == 1:
    raise ValueError("bad learning rate")
dist.all_reduce(torch.ones(4, device="cuda"))
"""
)

STOPS = {"deadlock-cycle": DEADLOCK, "out-of-memory": OUT_OF_MEMORY, "rank-raised": RAISES}
"""By the rule of the finding."""
