"""Parameters that see a share of the work get summed gradients, whatever tensor replaces them during the pass."""

import copy

import pytest
import torch
from tests.methods.processes import run
from tests.methods.tensor.models import GPT, GPT_PLAN, Outcome, gather, tokens_of, train_alone
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

from sandtable.methods.pipeline import PipeDream, Pipeline
from sandtable.methods.tensor import TensorParallel, TensorPlan


def _make_gpt() -> GPT:
    torch.manual_seed(3)
    return GPT().double()


def _sharded(sequence_parallel: bool) -> tuple[dict[str, Tensor], float]:
    """Return weights after three steps with FSDP2 and tensor parallelism, and the norm of the last gradient."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = _make_gpt()
    split = TensorParallel(model, plan=GPT_PLAN, group=mesh["tp"].get_group(), sequence_parallel=sequence_parallel)
    start = split.full_state_dict()
    for block in model.blocks:
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    with torch.no_grad():
        model.positions.weight.zero_()
    split.load_full_state_dict(start)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    half = mesh["dp"].get_local_rank()
    for step in range(3):
        tokens, targets = tokens_of(step)
        optimizer.zero_grad()
        split.cross_entropy(model(tokens.chunk(2)[half]), targets.chunk(2)[half]).backward()
        optimizer.step()
    norm = split.clip_grad_norm_(0.5)
    clipped = split.clip_grad_norm_(0.5)
    assert clipped.item() == pytest.approx(0.5, rel=1e-4)
    return split.full_state_dict(), norm.item()


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_beside_fully_sharded_data_parallelism_a_model_trains_as_in_one_process(sequence_parallel):
    alone = train_alone(_make_gpt())
    norm = torch.stack([gradient.norm() for gradient in alone.gradients.values()]).norm().item()
    for weights, own_norm in run(4, _sharded, sequence_parallel):
        for name, weight in alone.weights.items():
            torch.testing.assert_close(weights[name], weight, rtol=0, atol=1e-9, msg=f"{name} differs")
        assert own_norm == pytest.approx(norm)


class _First(nn.Module):
    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.words, self.positions, self.block = model.words, model.positions, model.blocks[0]

    def forward(self, tokens: Tensor) -> Tensor:
        output: Tensor = self.block(self.words(tokens) + self.positions(torch.arange(tokens.size(1))))
        return output


class _Last(nn.Module):
    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.block, self.norm, self.head = model.blocks[1], model.norm, model.head
        self.head.weight = nn.Parameter(model.head.weight.detach().clone())

    def forward(self, values: Tensor) -> Tensor:
        output: Tensor = self.head(self.norm(self.block(values)))
        return output


def _stages() -> list[nn.Module]:
    model = _make_gpt()
    return [_First(model), _Last(model)]


def _in_a_pipeline(sequence_parallel: bool) -> dict[str, Tensor]:
    """Train, drained after every minibatch, so that it matches one process."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
    stages, number = _stages(), mesh["pp"].get_local_rank()
    own = stages[number]
    plan = TensorPlan(GPT_PLAN.styles, sequence=("block", "norm"), is_strict=False)
    split = TensorParallel(own, plan=plan, group=mesh["tp"].get_group(), sequence_parallel=sequence_parallel)
    pipeline = Pipeline(
        [own if each == number else None for each in range(2)],
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        loss=split.cross_entropy,
        schedule=PipeDream(),
        group=mesh["pp"].get_group(),
        timeout_s=40,
    )
    for step in range(3):
        pipeline.step(*tokens_of(step))
        pipeline.drain()
    pipeline.close()
    return {f"{number}.{name}": split.full_tensor(name, each.detach()) for name, each in own.named_parameters()}


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_stages_with_stashed_weights_train_as_in_one_process(sequence_parallel):
    model = nn.Sequential(*_stages())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        tokens, targets = tokens_of(step)
        optimizer.zero_grad()
        F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
    expected = dict(model.named_parameters())
    for weights in run(4, _in_a_pipeline, sequence_parallel):
        for name, weight in weights.items():
            torch.testing.assert_close(weight, expected[name], rtol=0, atol=1e-9, msg=f"{name} differs")


def _of_a_copy(sequence_parallel: bool) -> tuple[Outcome, bool]:
    """Train a copy, whose norms only now require gradients."""
    original = _make_gpt()
    original.norm.requires_grad_(False)
    parallel = TensorParallel(original, plan=GPT_PLAN, sequence_parallel=sequence_parallel)
    model = copy.deepcopy(original)
    model.norm.requires_grad_()
    tokens, targets = tokens_of(0)
    loss = parallel.cross_entropy(model(tokens), targets)
    loss.backward()
    return gather(model, parallel, [loss.item()]), all(each.grad is None for each in original.parameters())


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_a_copy_of_a_split_model_is_split_as_it_is(sequence_parallel):
    model, (tokens, targets) = _make_gpt(), tokens_of(0)
    loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    loss.backward()
    alone = gather(model, None, [loss.item()])
    for outcome, is_untouched in run(2, _of_a_copy, sequence_parallel):
        outcome.check_equal(alone)
        assert is_untouched
