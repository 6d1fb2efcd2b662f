"""DDP moves the inputs of each rank to its own card."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Encoder(nn.Module):
    def __init__(self, vocab=200, d=32):
        super().__init__()
        self.emb = nn.EmbeddingBag(vocab, d)
        self.fc = nn.Linear(d, 2)

    def forward(self, tokens):
        return self.fc(self.emb(tokens))


def main():
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    torch.manual_seed(0)
    model = Encoder().to(local)
    model = DistributedDataParallel(model, device_ids=[local], output_device=local)
    opt = torch.optim.Adagrad(model.parameters(), 0.1)
    torch.manual_seed(local)
    for _ in range(4):
        loss = nn.functional.cross_entropy(
            model(torch.randint(0, 200, (8, 12)).cuda()), torch.randint(0, 2, (8,)).cuda()
        )
        opt.zero_grad()
        loss.backward()
        opt.step()


main()
