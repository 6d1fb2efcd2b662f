# rule: unused-parameters
# source: pytorch/pytorch#43259
# ranks: 2
"""An auxiliary head takes part in the loss of the first steps only."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class SegNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
        self.main = nn.Conv2d(8, 4, 1)
        self.aux = nn.Conv2d(8, 4, 1)

    def forward(self, x, with_aux):
        h = self.body(x)
        return (self.main(h), self.aux(h)) if with_aux else (self.main(h), None)


def main():
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    torch.manual_seed(0)
    net = DDP(SegNet().cuda(), device_ids=[local])  # <-- here
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    torch.manual_seed(10 + local)
    for step in range(8):
        x = torch.rand(2, 3, 32, 32).cuda()
        y = torch.randint(0, 4, (2, 32, 32)).cuda()
        main_out, aux_out = net(x, with_aux=step < 2)  # <-- here
        loss = F.cross_entropy(main_out, y)
        if aux_out is not None:
            loss = loss + 0.4 * F.cross_entropy(aux_out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()


main()
