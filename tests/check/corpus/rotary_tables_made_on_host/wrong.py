# rule: host-copy-in-loop
# source: own
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def rotary(t, d):
    inv = 1.0 / 10000 ** (torch.arange(0, d, 2).float() / d)
    a = torch.outer(torch.arange(t).float(), inv)
    return a.cos(), a.sin()


class Attn(nn.Module):
    def __init__(self, d=512, h=8):
        super().__init__()
        self.h, self.hd = h, d // h
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def turn(self, x):
        cos, sin = rotary(x.size(2), self.hd)
        cos, sin = cos.to(x.device), sin.to(x.device)  # <-- here
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, self.hd).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(self.turn(q), self.turn(k), v, is_causal=True)
        return x + self.o(y.transpose(1, 2).reshape(b, t, d))


def main():
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(*[Attn() for _ in range(6)]).cuda(), device_ids=[local])
    opt = torch.optim.AdamW(model.parameters())
    torch.manual_seed(dist.get_rank())
    for _ in range(6):
        x = torch.randn(8, 512, 512, device="cuda")
        loss = model(x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    dist.destroy_process_group()


main()
