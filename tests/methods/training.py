"""A small problem to train on: a model, batches that are the same everywhere, and the result of one process."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from sandtable.methods.data import DataParallel

__all__ = ["Batch", "batches", "flat_weights", "make_model", "sgd", "step_through", "train", "train_alone"]

Batch = tuple[Tensor, Tensor]
_BATCH = 4


def make_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3))


def batches(num_steps: int, world: int, *, first: int = 0) -> list[list[Batch]]:
    """Return the batch of each rank, for each step."""
    found = []
    for step in range(first, first + num_steps):
        generator = torch.Generator().manual_seed(100 + step)
        inputs = torch.randn(world, _BATCH, 6, generator=generator)
        targets = torch.randint(3, (world, _BATCH), generator=generator)
        found.append(list(zip(inputs, targets, strict=True)))
    return found


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def train(
    num_steps: int = 5,
    *,
    first: int = 0,
    model: nn.Module | None = None,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd,
    **settings: Any,
) -> tuple[nn.Module, DataParallel]:
    """Return the model of this rank after some steps on its own batches."""
    model = model or make_model()
    parallel = DataParallel(model, optimizer(model), **settings)
    step_through(model, parallel, num_steps, first=first)
    return model, parallel


def step_through(model: nn.Module, parallel: DataParallel, num_steps: int, *, first: int = 0) -> None:
    for ranks in batches(num_steps, dist.get_world_size(), first=first):
        inputs, targets = ranks[dist.get_rank()]
        F.cross_entropy(model(inputs), targets).backward()
        parallel.step()


def train_alone(
    world: int, num_steps: int = 5, *, optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd
) -> Tensor:
    """Return the weights after the same steps in one process, on the joined batches."""
    model = make_model()
    own = optimizer(model)
    for ranks in batches(num_steps, world):
        inputs, targets = (torch.cat(parts) for parts in zip(*ranks, strict=True))
        own.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        own.step()
    return flat_weights(model)


def flat_weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
