"""Stages work at the same time: layers of a known duration show it on any machine."""

import time
from typing import Any

import pytest
import torch
from tests.methods.processes import run
from torch import Tensor, nn
from torch.nn import functional as F

from sandtable.methods.pipeline import Flush, PipeDream, Pipeline

_FORWARD_S, _BACKWARD_S = 0.05, 0.1
_MINIBATCHES = 8


class _Slow(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, values: Tensor, weight: Tensor) -> Tensor:
        time.sleep(_FORWARD_S)
        return values + weight

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        time.sleep(_BACKWARD_S)
        return gradients[0], gradients[0].sum(dim=0)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4))

    def forward(self, values: Tensor) -> Any:
        return _Slow.apply(values, self.weight)


def seconds(schedule, rows, steps):
    stages = [Layer() for _ in range(3)]
    pipeline = Pipeline(
        stages,
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        loss=F.cross_entropy,
        schedule=schedule,
        timeout_s=40,
    )
    inputs, targets = torch.randn(rows, 4), torch.zeros(rows, dtype=torch.int64)
    pipeline.step(inputs, targets)
    pipeline.drain()
    start = time.perf_counter()
    for _ in range(steps):
        pipeline.step(inputs, targets)
    pipeline.drain()
    elapsed = time.perf_counter() - start
    pipeline.close()
    return elapsed


@pytest.mark.parametrize(
    ("schedule", "rows", "steps"), [(PipeDream(), 2, _MINIBATCHES), (Flush(_MINIBATCHES), _MINIBATCHES, 1)], ids=str
)
def test_three_stages_take_far_less_than_one_after_the_other(schedule, rows, steps):
    one_after_the_other = 3 * _MINIBATCHES * (_FORWARD_S + _BACKWARD_S)
    # A perfect pipeline of three stages needs (8 + 2) / 24 of it; the limit is for a busy machine.
    assert max(run(3, seconds, schedule, rows, steps)) < 0.75 * one_after_the_other
