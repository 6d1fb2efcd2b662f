import os
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class Layer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n = nn.LayerNorm(d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.n(x))))


@torch.no_grad()
def weight_norms(model):
    norms = {}
    for name, p in model.named_parameters():
        norms[name] = p.to_local().norm() ** 2
    values = torch.stack(list(norms.values()))
    dist.all_reduce(values)
    return dict(zip(norms, values.sqrt().unbind()))


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    model = nn.Sequential(*[Layer(2048) for _ in range(6)]).cuda()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    torch.manual_seed(dist.get_rank())
    for step in range(10):
        x = torch.randn(4, 512, 2048, device="cuda")
        loss = model(x).square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        norms = weight_norms(model)
        if step % 10 == 0 and dist.get_rank() == 0:
            print({k: v.item() for k, v in norms.items()})
    dist.destroy_process_group()


main()
