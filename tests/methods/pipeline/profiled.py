"""Functions that return models, as `sandtable profile` takes them."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["branching", "deep", "of_width", "routed", "with_loss", "with_words"]


def deep() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(inplace=True)]
    for _ in range(3):
        layers += [nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def with_loss() -> tuple[nn.Module, Tensor, Callable[[Tensor], Tensor]]:
    targets = torch.zeros(4, dtype=torch.int64)
    return nn.Sequential(nn.Linear(8, 3)), torch.randn(4, 8), lambda output: F.cross_entropy(output, targets)


def with_words() -> tuple[nn.Module, dict[str, Tensor]]:
    return nn.Sequential(nn.Linear(8, 3)), {"input": torch.randn(4, 8)}


def of_width(width: int) -> nn.Module:
    return nn.Linear(width, width)


class _Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(8, 8)

    def forward(self, x):
        return self.line(x) if x.sum() > 0 else x


def routed() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(nn.Linear(8, 8), _Branching(), nn.Linear(8, 8)), torch.ones(2, 8)


def branching() -> tuple[nn.Module, Tensor]:
    return _Branching(), torch.ones(2, 8)
