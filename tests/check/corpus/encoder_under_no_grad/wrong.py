# rule: parameters-without-gradient
# source: own
"""Captions of images: encoder and decoder are trained."""

import os
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Captioner(nn.Module):
    def __init__(self, v=100, d=32):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, d, 4, 4), nn.ReLU(), nn.Conv2d(d, d, 4, 4), nn.Flatten(2))
        self.emb = nn.Embedding(v, d)
        self.gru = nn.GRU(d, d, batch_first=True)
        self.out = nn.Linear(d, v)

    def encode(self, images):
        with torch.no_grad():  # <-- here
            return self.encoder(images).mean(-1)  # <-- here

    def forward(self, images, words):
        h0 = self.encode(images).unsqueeze(0)
        return self.out(self.gru(self.emb(words), h0)[0])


def main():
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    torch.manual_seed(0)
    model = DDP(Captioner().cuda(), device_ids=[local], find_unused_parameters=True)
    opt = torch.optim.Adam(
        [
            {"params": model.module.encoder.parameters(), "lr": 1e-4},
            {"params": [p for n, p in model.module.named_parameters() if not n.startswith("encoder")], "lr": 1e-3},
        ]
    )  # <-- here
    g = torch.Generator().manual_seed(local)
    for _ in range(5):
        img = torch.randn(4, 3, 32, 32, generator=g).cuda()
        w = torch.randint(0, 100, (4, 9), generator=g).cuda()
        loss = nn.functional.cross_entropy(model(img, w[:, :-1]).flatten(0, 1), w[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()  # <-- here
        opt.step()  # <-- here
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
