# rule: unawaited-collective
# source: own
"""Features of all ranks are gathered while the rank computes its own logits."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
net = DDP(nn.Linear(512, 128).cuda())
bank = torch.zeros(4096, 128, device="cuda")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
torch.manual_seed(rank)
for step in range(4):
    features = F.normalize(net(torch.randn(64, 512).cuda()), dim=1)
    gathered = torch.empty(64 * size, 128, device="cuda")
    work = dist.all_gather_into_tensor(gathered, features.detach(), async_op=True)  # <-- here
    logits = features @ bank.clone().t()
    bank[step * 64 * size : (step + 1) * 64 * size] = gathered  # <-- here
    work.wait()
    loss = logits.logsumexp(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
