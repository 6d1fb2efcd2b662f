"""Layers made from slices of unsplit ones: results, slices, and errors."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.methods.processes import run
from tests.methods.tensor.models import MLP, Attention, Outcome, gather
from torch import Tensor, nn

from sandtable.errors import MethodError
from sandtable.methods.tensor import (
    ColumnParallelLinear,
    ColumnSplit,
    RowParallelLinear,
    TensorGroup,
    TensorParallel,
    VocabParallelEmbedding,
)

_PLANS: dict[str, dict[str, Any]] = {
    "mlp": {"up": "column", "down": "row"},
    "attention": {"0": "heads", "0.qkv": ColumnSplit(parts=3), "0.out": "row"},
    "mlp twice": {"up": "column", "down": "row"},
}


def _make(kind: str) -> nn.Module:
    torch.manual_seed(5)
    mlp = MLP()
    return {"mlp": mlp, "mlp twice": nn.Sequential(mlp, mlp), "attention": nn.Sequential(Attention())}[kind].double()


def _inputs() -> Tensor:
    return torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(6), dtype=torch.float64)


def _forth_and_back(kind: str) -> Outcome:
    model, inputs = _make(kind), _inputs().requires_grad_()
    parallel = TensorParallel(model, plan=_PLANS[kind])
    outputs = model(inputs)
    forward = dict(parallel.traffic.calls)
    outputs.square().sum().backward()
    both = dict(parallel.traffic.calls)
    notes = {"outputs": outputs.detach(), "inputs": inputs.grad, "forward": forward, "both": both}
    return gather(model, parallel, [], **notes)


def _alone(kind: str) -> Outcome:
    model, inputs = _make(kind), _inputs().requires_grad_()
    outputs = model(inputs)
    outputs.square().sum().backward()
    return gather(model, None, [], outputs=outputs.detach(), inputs=inputs.grad)


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("kind", list(_PLANS))
def test_a_block_computes_as_the_unsplit_one(kind, world):
    alone = _alone(kind)
    for outcome in run(world, _forth_and_back, kind):
        outcome.check_equal(alone)
        torch.testing.assert_close(outcome.notes["outputs"], alone.notes["outputs"])
        torch.testing.assert_close(outcome.notes["inputs"], alone.notes["inputs"])
        # One for the input's gradient; attention has a norm (weight and bias) that sees this rank's heads only.
        forward, backward = {"mlp": (1, 1), "attention": (1, 3), "mlp twice": (2, 2)}[kind]
        assert outcome.notes["forward"] == {"all-reduce": forward}
        assert outcome.notes["both"] == {"all-reduce": forward + backward}


class _Gated(nn.Module):
    """Two layers that read the same tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.down(torch.sigmoid(self.gate(x)) * self.up(x))
        return output


def _count_gated() -> tuple[dict[str, int], Tensor, Tensor]:
    torch.manual_seed(0)
    model = _Gated()
    inputs = torch.randn(2, 4, requires_grad=True)
    (expected,) = torch.autograd.grad(model(inputs).sum(), inputs)
    parallel = TensorParallel(model, plan={"gate": "column", "up": "column", "down": "row"})
    parallel.traffic.reset()
    (found,) = torch.autograd.grad(model(inputs).sum(), inputs)
    return dict(parallel.traffic.calls), found, expected


def test_layers_that_read_the_same_tensor_share_one_all_reduce():
    for calls, found, expected in run(2, _count_gated):
        assert calls == {"all-reduce": 2}
        torch.testing.assert_close(found, expected)


def _embed(padding_idx: int | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(7)
    whole = nn.Embedding(12, 3, padding_idx=padding_idx)
    words = torch.tensor([[0, 3, 11], [7, 3, 5]])
    group = TensorGroup()
    split = VocabParallelEmbedding(whole, group)
    expected, found = whole(words), split(words)
    # Of zeros, as a padding row has them, the square alone would have no slope.
    (expected + 1).square().sum().backward()
    (found + 1).square().sum().backward()
    assert whole.weight.grad is not None
    assert split.weight.grad is not None
    return found.detach(), expected.detach(), split.weight.grad, whole.weight.grad.chunk(group.size)[group.rank]


@pytest.mark.parametrize("padding_idx", [None, 7])
def test_an_embedding_in_volumes_is_the_whole_one(padding_idx):
    for found, expected, gradient, share in run(4, _embed, padding_idx):
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(gradient, share)


def _message(build: Callable[[], Any]) -> str:
    with pytest.raises(MethodError) as error:
        build()
    return str(error.value)


def _refusals() -> list[str]:
    group = TensorGroup()
    return [
        _message(lambda: ColumnParallelLinear(nn.Linear(4, 6), group, name="up")),
        _message(lambda: RowParallelLinear(nn.Linear(6, 4), group, name="down")),
        _message(lambda: ColumnParallelLinear(nn.Linear(4, 8), group, parts=3, name="qkv")),
        _message(lambda: ColumnParallelLinear(nn.Conv2d(4, 8, 1), group, name="conv")),
        _message(lambda: VocabParallelEmbedding(nn.Embedding(10, 3), group, name="words")),
        _message(lambda: VocabParallelEmbedding(nn.Embedding(12, 3, max_norm=1.0), group, name="words")),
        _message(lambda: VocabParallelEmbedding(nn.Linear(4, 8), group, name="words")),
        _message(lambda: VocabParallelEmbedding(nn.Embedding(12, 3), group)(torch.tensor([12]))),
    ]


def test_uneven_splits_and_other_layers_are_refused_with_the_remedy():
    column, row, parts, conv, words, norm, linear, range_ = run(4, _refusals)[0]
    assert column == (
        "the number of ranks (4) must divide the outputs of up, but got 6; "
        "try a group of 1, 2, 3 or 6 ranks, or leave it out of the plan"
    )
    assert "must divide the inputs of down, but got 6" in row
    assert "the number of parts (3) must divide the outputs of qkv, but got 8" in parts
    assert "must be an nn.Linear or a Conv1D, but conv is a Conv2d" in conv
    assert "must divide the vocabulary of words, but got 10; pad it to 12, or leave it out of the plan" in words
    assert "words has max_norm=1.0" in norm
    assert "words is a Linear" in linear
    assert "indices must be from 0 to 11, but got 12" in range_
