"""Two pipeline stages; the embedding of the first and the output layer of the second are one matrix."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

VOCABULARY, WIDTH = 512, 64


class First(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens):
        return self.layer(self.embedding(tokens))


class Last(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x):
        return self.head(torch.relu(self.layer(x)))


dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
torch.manual_seed(rank)
stage = (First() if rank == 0 else Last()).cuda()
tied = stage.embedding.weight if rank == 0 else stage.head.weight
dist.broadcast(tied.data, src=0)
optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(5)
for _ in range(4):
    tokens = torch.randint(VOCABULARY, (8, 16), generator=generator).cuda()
    optimizer.zero_grad()
    if rank == 0:
        out = stage(tokens)
        dist.send(out.detach(), 1)
        grad = torch.empty_like(out)
        dist.recv(grad, 1)
        out.backward(grad)
    else:
        x = torch.empty(8, 16, WIDTH, device="cuda", requires_grad=True)
        dist.recv(x.data, 0)
        loss = F.cross_entropy(stage(x).flatten(0, 1), tokens.flatten())
        loss.backward()
        dist.send(x.grad, 0)
    dist.all_reduce(tied.grad)
    optimizer.step()
