import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def block(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


class UNet(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.down1, self.down2 = block(3, 8), block(8, 16)
        self.pool = nn.MaxPool2d(2)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.fuse = block(16, 8)
        self.head = nn.Conv2d(8, classes, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(self.pool(a))
        return self.head(self.fuse(torch.cat([a, self.up(b)], 1)))


def main():
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    net = UNet().cuda()
    nn.SyncBatchNorm.convert_sync_batchnorm(net)
    net = DDP(net, device_ids=[local])
    g = torch.Generator().manual_seed(2)
    data = TensorDataset(torch.randn(32, 3, 16, 16, generator=g), torch.randint(3, (32, 16, 16), generator=g))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=2, sampler=sampler)
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.cross_entropy(net(x.cuda()), y.cuda())
            opt.zero_grad()
            loss.backward()
            opt.step()
    if dist.get_rank() == 0:
        torch.save(net.module.state_dict(), "unet.pth")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
