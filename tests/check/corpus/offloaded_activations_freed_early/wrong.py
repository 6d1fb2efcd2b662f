# rule: memory-reused-early
# source: meta-pytorch/torchrec#4231
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Offload:
    def __init__(self):
        self.d2h = torch.cuda.Stream()

    def pack(self, t):
        if t.numel() < 4096 or isinstance(t, nn.Parameter) or not t.is_cuda or t._base is not None:
            return t
        self.d2h.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.d2h):
            host = torch.empty(t.shape, dtype=t.dtype, pin_memory=True)
            host.copy_(t, non_blocking=True)  # <-- here
        return t.device, host

    def unpack(self, packed):
        if isinstance(packed, torch.Tensor):
            return packed
        device, host = packed
        torch.cuda.current_stream().wait_stream(self.d2h)
        return host.to(device, non_blocking=True)


class MLPBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.net = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        return x + self.net(x)  # <-- here


def main():
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(*[MLPBlock(256) for _ in range(6)]).cuda(), device_ids=[local])
    opt = torch.optim.AdamW(model.parameters())
    off = Offload()
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(6):
        x = torch.randn(512, 256, device="cuda")
        with torch.autograd.graph.saved_tensors_hooks(off.pack, off.unpack):
            loss = model(x).square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
    dist.destroy_process_group()


main()
