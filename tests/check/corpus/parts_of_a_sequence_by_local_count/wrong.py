# rule: unequal-targets
# source: NVIDIA/Megatron-LM#7452
"""Context parallelism: ranks hold parts of one sequence, and each divides its loss by its own unmasked tokens."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class GatherSequence(torch.autograd.Function):
    """All-gather along the sequence; the backward pass sums and scatters."""

    @staticmethod
    def forward(ctx, x):
        out = x.new_empty(x.shape[0] * dist.get_world_size(), *x.shape[1:])
        dist.all_gather_into_tensor(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, grad):
        out = grad.new_empty(grad.shape[0] // dist.get_world_size(), *grad.shape[1:])
        dist.reduce_scatter_tensor(out, grad.contiguous())
        return out


class Model(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embedding, self.head = nn.Embedding(100, width), nn.Linear(width, 100)
        self.query, self.key_value = nn.Linear(width, width), nn.Linear(width, 2 * width)

    def forward(self, tokens):
        x = self.embedding(tokens)
        key, value = GatherSequence.apply(self.key_value(x)).chunk(2, -1)
        query, key, value = (part.transpose(0, 1) for part in (self.query(x), key, value))
        return self.head(x + F.scaled_dot_product_attention(query, key, value).transpose(0, 1))


def main():
    dist.init_process_group("nccl")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    model = DistributedDataParallel(Model().cuda())
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(5):
        sequence = torch.randint(1, 100, (33, 2))
        targets = sequence[1:].masked_fill(torch.arange(32)[:, None] < 10, -100)  # the prompt is no target
        tokens, mine = sequence[:-1].chunk(size)[rank].cuda(), targets.chunk(size)[rank].cuda()
        loss = F.cross_entropy(model(tokens).flatten(0, 1), mine.flatten())  # <-- here
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


main()
