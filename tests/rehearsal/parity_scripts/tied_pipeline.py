"""GPipe by hand: layers keep their number in the whole model, and the first and the last stage share a matrix."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--stages", type=int, default=2)
parser.add_argument("--micro", type=int, default=4)
parser.add_argument("--hidden", type=int, default=32)
args = parser.parse_args()
VOCAB, SEQ, LAYERS = 40, 8, 4
dist.init_process_group("nccl")
me, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(me % torch.cuda.device_count())
dp = world // args.stages
stage, replica = divmod(me, dp)
first, last = stage == 0, stage == args.stages - 1
dp_groups = [dist.new_group([s * dp + i for i in range(dp)]) for s in range(args.stages)]
pp_groups = [dist.new_group([s * dp + i for s in range(args.stages)]) for i in range(dp)]
emb_groups = [dist.new_group(sorted({i, (args.stages - 1) * dp + i})) for i in range(dp)]
dp_group, emb_group = dp_groups[stage], emb_groups[replica]


class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        if first:
            self.wte = nn.Embedding(VOCAB, args.hidden)
        per = LAYERS // args.stages
        self.layers = nn.ModuleDict()
        for n in range(stage * per, (stage + 1) * per):
            torch.manual_seed(1000 + n)
            self.layers[str(n)] = nn.Sequential(
                nn.LayerNorm(args.hidden), nn.Linear(args.hidden, args.hidden), nn.Dropout(0.1)
            )
        if last and not first:
            self.head = nn.Parameter(torch.empty(VOCAB, args.hidden))

    @property
    def tied(self):
        return self.wte.weight if first else self.head

    def forward(self, x):
        if first:
            x = self.wte(x)
        for layer in self.layers.values():
            x = x + layer(x)
        return F.linear(x, self.tied) if last else x


net = Stage().cuda()
if first or last:
    torch.manual_seed(7)
    with torch.no_grad():
        net.tied.copy_(torch.randn(VOCAB, args.hidden) * 0.1)
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
rng = torch.Generator().manual_seed(50 + replica)
torch.cuda.manual_seed(900 + me)
for _ in range(3):
    text = torch.randint(VOCAB, (8, SEQ + 1), generator=rng)
    ins, outs = text[:, :-1], text[:, 1:]
    if first:
        ins = ins.cuda()
    if last:
        outs = outs.cuda()
    keep = []
    for m in range(args.micro):
        if first:
            x = ins.chunk(args.micro)[m]
        else:
            x = torch.empty(8 // args.micro, SEQ, args.hidden, device="cuda", requires_grad=True)
            dist.recv(x.data, src=me - dp)
        y = net(x)
        if not last:
            dist.send(y.detach(), dst=me + dp)
        keep.append((x, y))
    for m, (x, y) in enumerate(keep):
        if last:
            loss = F.cross_entropy(y.flatten(0, 1), outs.chunk(args.micro)[m].flatten()) / args.micro
            loss.backward()
        else:
            g = torch.empty_like(y)
            dist.recv(g, src=me + dp)
            y.backward(g)
        if not first:
            assert x.grad is not None
            dist.send(x.grad, dst=me - dp)
    if args.stages > 1 and (first or last):
        dist.all_reduce(net.tied.grad, group=emb_group)
    for q in net.parameters():
        dist.all_reduce(q.grad, group=dp_group)
        q.grad /= dp
    opt.step()
    opt.zero_grad()
dist.destroy_process_group()
