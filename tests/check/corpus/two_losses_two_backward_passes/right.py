"""Two losses of one forward pass of DDP are differentiated together."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(10, 32), nn.ReLU())
        self.policy, self.value = nn.Linear(32, 4), nn.Linear(32, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.policy(h), self.value(h)


def main():
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    torch.manual_seed(0)
    model = DDP(TwoHeads().cuda(), device_ids=[local])
    opt = torch.optim.Adam(model.parameters())
    torch.manual_seed(local)
    for _ in range(5):
        x = torch.randn(8, 10).cuda()
        logits, value = model(x)
        policy_loss = F.cross_entropy(logits, torch.randint(0, 4, (8,)).cuda())
        value_loss = F.mse_loss(value.squeeze(1), torch.rand(8).cuda())
        opt.zero_grad()
        (policy_loss + 0.5 * value_loss).backward()
        opt.step()


main()
