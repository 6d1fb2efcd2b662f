"""Two awkward stages: several tensors between them, numbers among these, a layer that works in place at the cut,
statistics, a frozen parameter, an unused one, and a model that returns a dictionary."""

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["loss", "make"]


class First(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 8)
        self.frozen = nn.Linear(6, 8).requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(3))
        self.norm = nn.BatchNorm1d(8)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        places = inputs.argmax(dim=1)
        return self.norm(self.layer(inputs)), places, inputs + self.frozen(inputs)[:, :6]


class Second(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.activation = nn.ReLU(inplace=True)
        self.embedding = nn.Embedding(6, 8)
        self.layer = nn.Linear(14, 3)

    def forward(self, values: Tensor, places: Tensor, skipped: Tensor) -> Any:
        mixed = self.activation(values) + self.embedding(places)
        return {"logits": self.layer(torch.cat([mixed, skipped], dim=1)), "places": places}


def loss(output: dict[str, Tensor], targets: dict[str, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(output["logits"], targets["classes"])


def make() -> list[nn.Module]:
    torch.manual_seed(3)
    return [First(), Second()]
