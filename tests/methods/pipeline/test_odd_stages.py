"""Stages are any modules, and the model may return anything."""

from typing import Any

import pytest
import torch
from tests.methods.pipeline.odd_stages import loss, make
from tests.methods.pipeline.training import batches, momentum
from tests.methods.processes import run
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from sandtable.errors import MethodError
from sandtable.methods.pipeline import Flush, PipeDream, Pipeline


def train(schedule, recompute):
    """Train; drained after each minibatch, asynchronous training also matches one process."""
    pipeline = Pipeline(make(), momentum, loss=loss, schedule=schedule, recompute=recompute, timeout_s=40)
    for inputs, targets in batches(4):
        pipeline.step(inputs, {"classes": targets})
        pipeline.synchronize()
    answers = [pipeline.predict(inputs) for inputs, _ in batches(2, first=50)]
    is_training = all(each.training for module in pipeline.modules.values() for each in module.modules())
    pipeline.close()
    values = {
        f"{stage}.{name}": value
        for stage, module in pipeline.modules.items()
        for name, value in module.state_dict().items()
    }
    return values, answers, is_training


@pytest.mark.parametrize(
    ("schedule", "recompute"), [(PipeDream(), False), (PipeDream(), True), (Flush(1), True)], ids=str
)
def test_awkward_stages_train_and_predict_as_in_one_process(schedule, recompute):
    model = nn.Sequential(*make())
    own = momentum([each for each in model.parameters() if each.requires_grad])
    for inputs, targets in batches(4):
        own.zero_grad()
        loss(chained(model, inputs), {"classes": targets}).backward()
        own.step()
    model.eval()
    expected = model.state_dict()
    first, last = run(2, train, schedule, recompute)
    for name, value in {**first[0], **last[0]}.items():
        assert torch.allclose(value.double(), expected[name].double(), atol=1e-6), name
    assert first[1] == [None, None]
    for answer, (inputs, _) in zip(last[1], batches(2, first=50), strict=True):
        assert torch.allclose(answer["logits"], chained(model, inputs)["logits"], atol=1e-6)
    assert first[2]
    assert last[2]


def chained(model, inputs):
    first, second = model
    return second(*first(inputs))


def predict_twice():
    pipeline = Pipeline(make(), momentum, loss=loss, schedule=PipeDream(), replicas=(2, 1), timeout_s=40)
    for inputs, targets in batches(5):
        pipeline.step(inputs, {"classes": targets})
    ((inputs, _),) = batches(1, first=50)
    answers = [pipeline.predict(inputs) for _ in range(2)]
    pipeline.close()
    return answers, next(iter(pipeline.modules.values())).state_dict()


def test_replicas_predict_the_same_since_their_statistics_are_averaged():
    (_, one), (_, other), (answers, _) = run(3, predict_twice)
    assert torch.equal(answers[0]["logits"], answers[1]["logits"])
    assert torch.equal(one["norm.running_mean"], other["norm.running_mean"])
    assert one["norm.running_mean"].abs().max() > 0


class Sentences(nn.Module):
    """Reads a given number of words of each row; a length of zero is an error."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.reader = nn.Embedding(9, 4), nn.LSTM(4, 6, batch_first=True)

    def forward(self, words, lengths):
        packed = pack_padded_sequence(self.words(words), lengths, batch_first=True, enforce_sorted=False)
        return self.reader(packed)[1][0][-1]


def sentences():
    torch.manual_seed(5)
    return [Sentences(), nn.Linear(6, 3)]


def read(schedule):
    pipeline = Pipeline(sentences(), momentum, loss=nn.functional.cross_entropy, schedule=schedule, timeout_s=40)
    words, lengths, targets = torch.arange(24).view(4, 6) % 9, torch.tensor([6, 2, 5, 1]), torch.tensor([0, 2, 1, 0])
    pipeline.step((words, lengths), targets)
    pipeline.close()
    return {
        f"{stage}.{name}": each for stage, own in pipeline.modules.items() for name, each in own.state_dict().items()
    }


@pytest.mark.parametrize("schedule", [Flush(2), PipeDream()], ids=str)
def test_inputs_that_must_not_be_zero_are_not_tried_as_zeros(schedule):
    first, last = sentences()
    own = momentum([*first.parameters(), *last.parameters()])
    words, lengths, targets = torch.arange(24).view(4, 6) % 9, torch.tensor([6, 2, 5, 1]), torch.tensor([0, 2, 1, 0])
    nn.functional.cross_entropy(last(first(words, lengths)), targets).backward()
    own.step()
    expected = nn.Sequential(first, last).state_dict()
    for weights in run(2, read, schedule):
        for name, weight in weights.items():
            assert torch.allclose(weight, expected[name], atol=1e-6), name


class Gives(nn.Module):
    """A stage that passes on something that is no tensor."""

    def __init__(self, what):
        super().__init__()
        self.layer, self.what = nn.Linear(6, 6), what

    def forward(self, inputs):
        return (self.layer(inputs), None) if self.what is None else {"values": self.layer(inputs)}


def refused(schedule):
    """Return the first rank's errors for named inputs, and for stages that return a dictionary or a None."""
    found = []
    ((inputs, targets),) = batches(1)
    cases: list[tuple[str | None, Any]] = [(None, inputs), ("names", inputs), (None, {"inputs": inputs})]
    for what, given in cases:
        stages = [Gives(what), nn.Linear(6, 3)]
        pipeline = Pipeline(stages, momentum, loss=nn.functional.cross_entropy, schedule=schedule, timeout_s=40)
        if pipeline.takes_inputs:
            with pytest.raises(MethodError) as error:
                pipeline.step(given, targets)
            found.append(str(error.value))
    return found


@pytest.mark.parametrize("schedule", [Flush(2), PipeDream()], ids=str)
def test_what_is_no_tensor_is_refused_with_the_remedy(schedule):
    nothing, names, inputs = run(2, refused, schedule)[0]
    assert "what leaves a stage must be a tensor or a tuple of tensors, but got NoneType among them; leave" in nothing
    assert "what leaves a stage must be a tensor or a tuple of tensors, but got dict; leave" in names
    assert "inputs must be a tensor or a tuple of tensors, but got dict; leave" in inputs


class Turned(nn.Module):
    """Its output is column-major, or one row expanded to all."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.row = nn.Linear(6, 8), nn.Parameter(torch.ones(1, 4))

    def forward(self, inputs):
        return self.layer(inputs).view(-1, 2, 4).transpose(1, 2), self.row.expand(len(inputs), -1)


class Summed(nn.Module):
    """The gradient of a sum is one number expanded to all."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, values, rows):
        return self.layer(values.sum(dim=2) * rows)


def turned():
    torch.manual_seed(6)
    return [Turned(), Summed()]


def turn(schedule):
    pipeline = Pipeline(turned(), momentum, loss=nn.functional.cross_entropy, schedule=schedule, timeout_s=40)
    for inputs, targets in batches(3):
        pipeline.step(inputs, targets)
        pipeline.drain()
    pipeline.close()
    return {
        f"{stage}.{name}": each for stage, own in pipeline.modules.items() for name, each in own.state_dict().items()
    }


@pytest.mark.parametrize("schedule", [Flush(2), PipeDream()], ids=str)
def test_tensors_cross_however_they_lie_in_memory(schedule):
    model = nn.Sequential(*turned())
    own = momentum(list(model.parameters()))
    for inputs, targets in batches(3):
        own.zero_grad()
        nn.functional.cross_entropy(chained(model, inputs), targets).backward()
        own.step()
    expected = model.state_dict()
    for weights in run(2, turn, schedule):
        for name, weight in weights.items():
            assert torch.allclose(weight, expected[name], atol=1e-6), name
