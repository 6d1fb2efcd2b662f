"""A small model in stages, the same batches everywhere, and training in one process to compare with."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from sandtable.methods.pipeline import Pipeline

__all__ = ["adam", "alone", "batches", "full_model", "make_stages", "momentum", "sgd", "stale", "train", "weights_of"]

_WIDTHS = (6, 16, 12, 14, 10, 12, 8, 9, 3)
Batch = tuple[Tensor, Tensor]
Factory = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def make_stages(num_stages: int) -> list[nn.Module]:
    """Divide eight layers among the stages as evenly as possible."""
    torch.manual_seed(1)
    layers = [
        nn.Sequential(nn.Linear(width, after), nn.Tanh() if after != _WIDTHS[-1] else nn.Identity())
        for width, after in pairwise(_WIDTHS)
    ]
    bounds = [round(index * len(layers) / num_stages) for index in range(num_stages + 1)]
    return [nn.Sequential(*layers[first:last]) for first, last in pairwise(bounds)]


def full_model(stages: Sequence[nn.Module]) -> nn.Module:
    return nn.Sequential(*stages)


def batches(num: int, rows: int | Sequence[int] = 8, *, first: int = 0) -> list[Batch]:
    found = []
    for number in range(first, first + num):
        generator = torch.Generator().manual_seed(100 + number)
        size = rows if isinstance(rows, int) else rows[(number - first) % len(rows)]
        found.append(
            (torch.randn(size, 6, generator=generator), torch.randint(3, (size,), generator=generator)),
        )
    return found


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.2)


def momentum(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-3)


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def weights_of(modules: dict[int, nn.Module]) -> dict[str, Tensor]:
    return {
        f"{stage}.{name}": parameter.detach().clone()
        for stage, module in modules.items()
        for name, parameter in module.named_parameters()
    }


def train(data: Sequence[Batch], num_stages: int, optimizer: Factory = momentum, **settings: Any) -> dict[str, Any]:
    """Return one rank's losses, the gradients of every update, and its final weights."""
    gradients: list[dict[str, Tensor]] = []
    pipeline = Pipeline(make_stages(num_stages), optimizer, loss=F.cross_entropy, timeout_s=40.0, **settings)
    if pipeline.optimizer is not None:
        pipeline.optimizer.register_step_pre_hook(lambda *_: gradients.append(_gradients(pipeline)))
    losses = [pipeline.step(inputs, targets) for inputs, targets in data]
    pipeline.close()
    return {
        "rank": dist.get_rank(),
        "losses": [None if loss is None else float(loss) for loss in losses],
        "gradients": gradients,
        "weights": weights_of(pipeline.modules),
        "passes": list(pipeline.record.passes),
        "most_held": pipeline.most_versions_held,
        "traffic": pipeline.traffic,
    }


def alone(data: Sequence[Batch], num_stages: int, optimizer: Factory = momentum) -> dict[str, Any]:
    """Do the same in one process."""
    stages = make_stages(num_stages)
    model = full_model(stages)
    own = optimizer(list(model.parameters()))
    losses, gradients = [], []
    for inputs, targets in data:
        own.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        gradients.append(
            {name: parameter.grad.clone() for name, parameter in _named(stages) if parameter.grad is not None}
        )
        own.step()
        losses.append(float(loss.detach()))
    return {"losses": losses, "gradients": gradients, "weights": weights_of(dict(enumerate(stages)))}


def stale(
    data: Sequence[Batch],
    replicas: Sequence[int],
    version: Callable[[int, int], int],
    per_update: Callable[[int], int],
    optimizer: Factory = momentum,
) -> dict[str, Tensor]:
    """Return the weights after training by a staleness formula, in one process, one minibatch at a time.

    `version(stage, minibatch)` says after how many updates a stage had the weights which the minibatch meets there.
    """
    stages = make_stages(len(replicas))
    optimizers = [optimizer(list(stage.parameters())) for stage in stages]
    history = [[_copy(stage)] for stage in stages]
    sums: list[dict[str, Tensor]] = [{} for _ in stages]
    for number, (inputs, targets) in enumerate(data):
        old = [
            {name: weight.clone().requires_grad_() for name, weight in history[index][version(index, number)].items()}
            for index in range(len(stages))
        ]
        value = inputs
        for stage, weights in zip(stages, old, strict=True):
            value = torch.func.functional_call(stage, weights, (value,))
        F.cross_entropy(value, targets).backward()
        for index, stage in enumerate(stages):
            for name, weight in old[index].items():
                assert weight.grad is not None
                sums[index][name] = sums[index].get(name, 0) + weight.grad
            size = per_update(index)
            done = number % size + 1
            if done == size or number == len(data) - 1:
                for name, parameter in stage.named_parameters():
                    parameter.grad = sums[index][name] / done
                optimizers[index].step()
                sums[index] = {}
                history[index].append(_copy(stage))
    return weights_of(dict(enumerate(stages)))


def _copy(module: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def _named(stages: Sequence[nn.Module]) -> list[tuple[str, nn.Parameter]]:
    return [
        (f"{index}.{name}", parameter)
        for index, stage in enumerate(stages)
        for name, parameter in stage.named_parameters()
    ]


def _gradients(pipeline: Pipeline) -> dict[str, Tensor]:
    return {
        f"{stage}.{name}": parameter.grad.clone()
        for stage, module in pipeline.modules.items()
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }
