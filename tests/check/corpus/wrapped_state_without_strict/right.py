import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x)) + x
        return x


class Classifier(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.backbone = Backbone()
        self.head = nn.Linear(16, classes)

    def forward(self, x):
        return self.head(self.backbone(x))


def fit(model, steps, classes):
    opt = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-3)
    for _ in range(steps):
        x, y = torch.randn(8, 16, device="cuda"), torch.randint(classes, (8,), device="cuda")
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()


def main():
    dist.init_process_group("nccl")
    rank, local = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    torch.manual_seed(rank)

    pretrained = DDP(Classifier(10).cuda(), device_ids=[local])
    fit(pretrained, 2, 10)
    if rank == 0:
        torch.save(pretrained.module.state_dict(), "pretrain.pt")
    dist.barrier()

    finetune = Classifier(4).cuda()
    state = torch.load("pretrain.pt", map_location=f"cuda:{local}")
    state = {k: v for k, v in state.items() if "head" not in k}
    result = finetune.load_state_dict(state, strict=False)
    if rank == 0:
        print(f"loaded, {len(result.missing_keys)} new parameters")
    for p in finetune.backbone.parameters():
        p.requires_grad_(False)
    fit(DDP(finetune, device_ids=[local]), 2, 4)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
