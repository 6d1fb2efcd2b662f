"""A parameter that two stages share is trained as one."""

import re
from typing import Any

import pytest
import torch
from tests.methods.pipeline.training import momentum
from tests.methods.processes import run
from torch import Tensor, nn
from torch.nn import functional as F

from sandtable.errors import MethodError
from sandtable.methods.pipeline import Flush, Interleaved, PipeDream, PipeDream2BW, Pipeline

_WORDS, _WIDTH = 11, 6


class Output(nn.Module):
    """Computes logits with the embedding's own weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(_WIDTH, _WIDTH)
        self.table = nn.Parameter(torch.randn(_WORDS, _WIDTH))

    def forward(self, values: Tensor) -> Any:
        return self.layer(values).tanh() @ self.table.T


def make_stages(num_stages: int) -> list[nn.Module]:
    torch.manual_seed(5)
    middle = [nn.Linear(_WIDTH, _WIDTH) for _ in range(num_stages - 2)]
    return [nn.Embedding(_WORDS, _WIDTH), *middle, Output()]


def data(num: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(9)
    return [tuple(torch.randint(_WORDS, (2, 8), generator=generator)) for _ in range(num)]


def train(num_stages, schedule, replicas, is_one_parameter=False):
    stages: list[Any] = make_stages(num_stages)
    tied: Any = [[(0, "weight"), (num_stages - 1, "table")]]
    if is_one_parameter:
        stages[-1].table, tied = stages[0].weight, None
    pipeline = Pipeline(
        stages, momentum, loss=F.cross_entropy, schedule=schedule, replicas=replicas, tied=tied, timeout_s=40
    )
    for inputs, targets in data(4):
        pipeline.step(inputs, targets)
    pipeline.close()
    return {stage: module.state_dict() for stage, module in pipeline.modules.items()}, pipeline.traffic


@pytest.mark.parametrize(
    ("world", "num_stages", "schedule", "replicas"),
    [(2, 2, Flush(4), None), (4, 2, Flush(2), (2, 2)), (3, 6, Interleaved(3), None)],
    ids=str,
)
def test_copies_stay_equal_and_train_as_in_one_process(world, num_stages, schedule, replicas):
    stages: list[Any] = make_stages(num_stages)
    stages[0].weight = stages[-1].table = nn.Parameter(stages[0].weight.detach().clone())
    model = nn.Sequential(*stages)
    optimizer = momentum(list(model.parameters()))
    for inputs, targets in data(4):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    held: dict[int, dict[str, Tensor]] = {}
    for states, _ in run(world, train, num_stages, schedule, replicas):
        held |= states
    assert torch.equal(held[0]["weight"], held[num_stages - 1]["table"])
    for stage, module in enumerate(stages):
        for name, value in module.state_dict().items():
            assert torch.allclose(held[stage][name], value, atol=1e-5), (stage, name)


def delayed(num_stages, schedule):
    """Train with one Parameter in two stages, which is detected."""
    return train(num_stages, schedule, None, is_one_parameter=True)


def test_two_versions_keep_copies_equal_with_the_staleness_of_one_batch():
    stages: list[Any] = make_stages(3)
    stages[0].weight = stages[-1].table = nn.Parameter(stages[0].weight.detach().clone())
    model = nn.Sequential(*stages)
    optimizer = momentum(list(model.parameters()))
    before = {name: value.clone() for name, value in model.named_parameters()}
    for inputs, targets in data(4):
        old = {name: value.detach().clone().requires_grad_() for name, value in before.items()}
        before = {name: value.detach().clone() for name, value in model.named_parameters()}
        F.cross_entropy(torch.func.functional_call(model, old, (inputs,)), targets).backward()
        for name, parameter in model.named_parameters():
            parameter.grad = old[name].grad
        optimizer.step()
    held: dict[int, dict[str, Tensor]] = {}
    for states, traffic in run(3, delayed, 3, PipeDream2BW(4)):
        held |= states
        assert traffic.weight_bytes in (0, 4 * 4 * _WORDS * _WIDTH)
    assert torch.equal(held[0]["weight"], held[2]["table"])
    for stage, module in enumerate(stages):
        for name, value in module.state_dict().items():
            assert torch.allclose(held[stage][name], value, atol=1e-6), (stage, name)


def refused():
    found = []
    cases: list[dict[str, Any]] = [
        {"schedule": PipeDream(), "tied": [[(0, "weight"), (1, "table")]]},
        {"schedule": Flush(2), "tied": [[(0, "weight"), (1, "bias")]]},
        {"schedule": Flush(2), "tied": [[(0, "weight"), (7, "table")]]},
        {"schedule": Flush(2), "loss": None},
        {"schedule": Flush(2), "timeout_s": 0},
        {"schedule": Flush(2), "stages": [nn.Sequential(), nn.Sequential()]},
        {"schedule": Flush(2), "stages": [None, None]},
        {"schedule": PipeDream(), "replicas": (2, 1)},
        {"schedule": Flush(2), "optimizer": momentum([nn.Parameter(torch.zeros(1))])},
        {"schedule": "1f1b"},
        {"schedule": PipeDream},
        {"schedule": None, "stages": []},
        {"schedule": Flush(2), "stages": [torch.tanh, torch.tanh]},
    ]
    for settings in cases:
        stages = settings.pop("stages", make_stages(2))
        settings.setdefault("loss", F.cross_entropy)
        try:
            Pipeline(stages, settings.pop("optimizer", momentum), **settings)
            found.append("accepted")
        except MethodError as error:
            found.append(str(error))
    return found


def test_what_cannot_work_is_refused_with_rule_value_and_remedy():
    words = [
        "tied across stages",
        "no 'bias'",
        "stages from 0 to 1",
        "loss must be a function",
        "timeout_s must be more than 0",
        "stage . .Sequential. is empty",
        "is None on rank",
        r"\(2, 1\) add up to 3",
        "a function that makes one, .* but got SGD",
        r"Flush\(m\), .* but got '1f1b'; try",
        "but got <class .*PipeDream'>",
        "at least one stage, but got none",
        "stage 0 is a builtin_function",
    ]
    first, last = run(2, refused)
    for pattern, *messages in zip(words, first, last, strict=True):
        assert any(re.search(pattern, message) for message in messages), (pattern, messages)
