"""The script of the self-test: what a training script needs from the virtual GPU, each with a result that is known."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

__all__ = ["main"]


class _Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
        return given * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


def _check_card() -> None:
    assert torch.cuda.is_available(), "torch.cuda.is_available() must be true"
    before = torch.cuda.memory_allocated()
    weights = torch.empty(1024, 1024, device="cuda")
    assert torch.cuda.memory_allocated() - before == 4 << 20, "4 MiB must be allocated for a million floats"
    assert weights.device.type == "cuda", "a tensor on the card must name its device"
    small = torch.arange(4, device="cuda")
    assert int((small * 3).sum()) == 18, "small values must be real"
    assert small.cpu().pin_memory().is_pinned(), "host memory must be pinned"
    side, event = torch.cuda.Stream(), torch.cuda.Event()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        weights.mul_(2)
        event.record()
    event.wait()
    torch.cuda.synchronize()


def _check_groups() -> None:
    number = torch.ones(1, dtype=torch.int64, device="cuda")
    dist.all_reduce(number)
    assert int(number) == dist.get_world_size(), "ranks must exchange small values"


def _train(model: torch.nn.Module) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        heads = model(torch.randn(2, 16, 64, device="cuda")).view(2, 16, 4, 16).transpose(1, 2)
        attended = F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        _Double.apply(attended).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    """Check the card, the groups, and one training of each kind."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    _check_card()
    dist.init_process_group("nccl")
    _check_groups()
    _train(DistributedDataParallel(torch.nn.Linear(64, 64).cuda()))
    sharded = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64)).cuda()
    fully_shard(sharded)
    _train(sharded)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
