"""Cutting: the stages in order compute what the model does, whatever the boundaries."""

from collections import OrderedDict
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.methods.pipeline.models import FAMILIES, Gpt, LateSize, Residual, inputs_of, vgg
from torch import Tensor, nn
from torch.nn import functional as F

from sandtable.errors import MethodError
from sandtable.methods.pipeline import StageModule, cut, tied_parameters, trace


def run_apart(stages: Sequence[nn.Module], inputs: Sequence[Tensor], grad_of_output: Tensor) -> Any:
    """Run forward and backward as ranks do: detach what crosses, and pass gradients back by hand."""
    taken, given_back = [], []
    values: Sequence[Tensor] = inputs
    for number, stage in enumerate(stages):
        if number:
            values = [each.detach().requires_grad_(each.is_floating_point()) for each in values]
        taken.append(values)
        result = stage(*values)
        values = result if isinstance(result, tuple) else (result,)
        given_back.append(values)
    grads: Sequence[Tensor | None] = [grad_of_output]
    for entered, left in zip(reversed(taken), reversed(given_back), strict=True):
        pairs = [
            (each, grad) for each, grad in zip(left, grads, strict=True) if grad is not None and each.requires_grad
        ]
        torch.autograd.backward([each for each, _ in pairs], [grad for _, grad in pairs])
        grads = [each.grad for each in entered]
    return given_back[-1][0].detach()


def run(stages: Sequence[nn.Module], *values: Tensor) -> Any:
    """Run forward, one stage after the other."""
    for stage in stages[:-1]:
        values = stage(*values)
    return stages[-1](*values)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


@cache
def num_layers(family: str) -> int:
    return len(trace(FAMILIES[family](), inputs_of(family)))


@settings(max_examples=25, deadline=None)
@given(data=st.data(), family=st.sampled_from(sorted(FAMILIES)))
def test_stages_in_a_row_equal_the_model_in_output_and_every_gradient(data, family):
    torch.manual_seed(3)
    model, inputs = FAMILIES[family](), inputs_of(family)
    boundaries = sorted(data.draw(st.sets(st.integers(1, num_layers(family) - 1), max_size=5)))
    stages = cut(model, inputs, boundaries)
    assert len(stages) == len(boundaries) + 1

    model.eval()  # dropout asks for random numbers in the same order only where nothing is cut
    output = model(inputs)
    weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(5))
    output.backward(weight)
    expected = gradients(model)
    model.zero_grad(set_to_none=True)
    for stage in stages:
        stage.eval()
    found = run_apart(stages, [inputs], weight)

    torch.testing.assert_close(found, output.detach(), rtol=0, atol=0)
    assert gradients(model).keys() == expected.keys()
    for name, grad in gradients(model).items():
        torch.testing.assert_close(grad, expected[name], rtol=1e-6, atol=1e-6, msg=name)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_state_dicts_of_the_stages_together_are_the_models(family):
    model = FAMILIES[family]()
    stages = cut(model, inputs_of(family), [2, 4])
    together = {name: value for stage in stages for name, value in stage.state_dict(keep_vars=True).items()}
    own = model.state_dict(keep_vars=True)
    assert together.keys() == own.keys()
    assert all(together[name] is own[name] for name in own)


def test_stages_train_as_the_model_does_with_batch_norm_and_dropout():
    models = []
    for is_cut in (False, True):
        torch.manual_seed(1)
        model = vgg()
        stages = cut(model, inputs_of("vgg"), [1, 5]) if is_cut else [model]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(2)
        for step in range(3):
            F.cross_entropy(run(stages, inputs_of("vgg") + step), torch.tensor([0, 1, 2])).backward()
            optimizer.step()
            optimizer.zero_grad()
        models.append(model)
    for one, other in zip(models[0].state_dict().values(), models[1].state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_cutting_leaves_the_model_and_the_random_numbers_as_they_are():
    model = FAMILIES["vgg"]()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    cut(model, inputs_of("vgg"), [3])
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())


def test_a_skip_connection_is_passed_through_the_stages_between():
    model = Residual()
    names = trace(model, inputs_of("residual")).names
    inside = [names.index("blocks.0.bn1"), names.index("blocks.0.conv2")]
    first, middle, _ = cut(model, inputs_of("residual"), inside)
    skipping, *_ = first(inputs_of("residual"))
    handed_on = middle(*first(inputs_of("residual")))
    assert len(handed_on) == 2
    assert torch.equal(handed_on[0], skipping)


def test_tied_weights_are_found_with_their_stages_and_names():
    stages = cut(Gpt(), inputs_of("gpt"), ["blocks.1", "head"])
    assert stages[0].tied_stages == {"tokens.weight": (0, 2)}
    assert stages[1].tied_stages == {}
    assert stages[2].tied_stages == {"head.weight": (0, 2)}
    assert [tied.names for tied in tied_parameters(stages)] == [{0: "tokens.weight", 2: "head.weight"}]


def test_a_module_that_is_called_in_two_stages_is_tied():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.line(torch.tanh(self.other(self.line(x))))

    model = Twice()
    assert trace(model, torch.ones(2, 4)).names == ("line", "other", "line#2")
    stages = cut(model, torch.ones(2, 4), [2])
    assert stages[1].tied_stages == {"line.weight": (0, 1), "line.bias": (0, 1)}


def test_a_smaller_last_minibatch_goes_through_the_same_stages():
    model = Gpt().eval()
    stages = cut(model, inputs_of("gpt"), [3, "blocks.1"])
    last = inputs_of("gpt", batch=1)[:, :4]
    assert torch.equal(run(stages, last), model(last))


def test_stages_go_to_evaluation_and_back_also_where_a_function_knows_the_mode():
    model = Gpt()
    stages = cut(model, inputs_of("gpt"), [4])
    model.eval()
    expected = model(inputs_of("gpt"))
    assert torch.equal(run([stage.eval() for stage in stages], inputs_of("gpt")), expected)
    assert not torch.equal(run([stage.train() for stage in stages], inputs_of("gpt")), expected)


def test_stages_of_one_mode_only_refuse_the_other():
    class Auxiliary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line, self.more = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            x = self.line(x)
            return x + self.more(x) if self.training else x

    stages = cut(Auxiliary(), torch.ones(2, 4), [1])
    stages[0].train()
    with pytest.raises(MethodError, match=r"cut in training and is set to evaluation; call model.train\(False\)"):
        stages[0].eval()


def test_inputs_that_only_a_late_stage_reads_are_passed_along():
    model = Gpt().eval()
    inputs = (inputs_of("gpt"), inputs_of("gpt"))
    assert torch.equal(run(cut(model, inputs, ["blocks.1", "norm"]), *inputs), model(*inputs))


def test_tuples_of_tensors_cross_one_by_one():
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LSTM(4, 4), nn.LSTM(4, 4)
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            y, state = self.first(x)
            y, (hidden, _) = self.second(y, state)
            return {"scores": self.head(y), "hidden": hidden}

    model, x = Recurrent(), torch.randn(5, 2, 4)
    stages = cut(model, x, ["second", "head"])
    assert [len(stages[0](x)), len(stages[1](*stages[0](x)))] == [3, 2]
    found = run(stages, x)
    expected = model(x)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_tensor_that_is_overwritten_behind_a_cut_keeps_its_gradient():
    class Inplace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.three = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            base = self.one(x)
            change = self.two(base + 1)
            base.add_(change)  # after its first reader, before its second
            return self.three(base + 1) + base

    model, x = Inplace(), torch.randn(3, 4)
    output = model(x)
    output.sum().backward()
    expected = gradients(model)
    for boundaries in ([1], [2], [1, 2]):
        model.zero_grad()
        found = run_apart(cut(model, x, boundaries), [x], torch.ones(3, 4))
        assert torch.equal(found, output)
        for name, grad in gradients(model).items():
            torch.testing.assert_close(grad, expected[name], msg=f"{boundaries} {name}")


def test_a_copy_of_a_stage_is_a_stage():
    stage = cut(Gpt(), inputs_of("gpt"), [2])[1]
    copied = deepcopy(stage)
    assert isinstance(copied, StageModule)
    assert (copied.stage_number, copied.layer_names) == (stage.stage_number, stage.layer_names)
    assert copied.tied_stages == stage.tied_stages
    assert copied.state_dict().keys() == stage.state_dict().keys()
    assert next(copied.parameters()) is not next(stage.parameters())


@pytest.mark.parametrize(
    ("boundaries", "message"),
    [
        ([3, 3], r"every stage must have a layer, but none is left between boundaries 3 and 3"),
        ([4, 2], r"none is left between boundaries 4 and 2 of \[4, 2\]; give increasing numbers from 1 to 11"),
        ([0], r"a layer after the first, but got 0 of 12 layers; try 1 to 11"),
        ([12], r"but got 12 of 12 layers; try 1 to 11"),
        (["nowhere"], r"must be the name of a layer, but 'nowhere' is not among 0, 1, 2"),
        (list(range(1, 13)), r"no more stages than layers, but there are 13 stages for 12 layers"),
    ],
)
def test_boundaries_that_cannot_be_are_refused_with_the_rule(boundaries, message):
    with pytest.raises(MethodError, match=message):
        cut(vgg(), inputs_of("vgg"), boundaries)


def test_where_only_a_shape_is_asked_for_no_element_crosses():
    model = LateSize().eval()
    stages = cut(model, torch.randn(3, 4), [1, 2])
    crossing = stages[1](*stages[0](torch.randn(3, 4)))
    assert [each.numel() for each in crossing] == [0, 0, 18]
    assert [each.requires_grad for each in crossing] == [False, False, True]
    assert [tuple(each.shape) for each in crossing[:2]] == [(3, 4, 0), (3, 6, 0)]
    smaller = torch.randn(1, 4)
    assert torch.equal(run(stages, smaller), model(smaller))
    output = model(smaller)
    output.sum().backward()
    expected = gradients(model)
    model.zero_grad()
    run_apart(stages, [smaller], torch.ones_like(output))
    assert all(torch.equal(grad, expected[name]) for name, grad in gradients(model).items())


@dataclass
class Result(OrderedDict[str, Any]):
    """A dict with a class of its own, as libraries return results."""

    scores: Tensor
    doubled: Tensor

    def __post_init__(self) -> None:
        self.update(scores=self.scores, doubled=self.doubled)


def test_the_last_stage_returns_what_the_model_returns_by_its_class():
    class Library(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            x = self.one(x)
            return Result(scores=self.two(x), doubled=2 * x)

    model, x = Library(), torch.randn(2, 4)
    found, expected = run(cut(model, x, [1]), x), model(x)
    assert type(found) is Result
    assert torch.equal(found.scores, expected.scores)
    assert torch.equal(found["doubled"], expected["doubled"])


def test_names_that_stages_need_themselves_are_refused():
    model = nn.Sequential(OrderedDict(layers=nn.Linear(4, 4), number=nn.Linear(4, 4), tied=nn.Linear(4, 4)))
    assert cut(model, torch.ones(2, 4), [1])[1].layer_names == ("number", "tied")
    model = nn.Sequential(OrderedDict(first=nn.Linear(4, 4), graph=nn.Linear(4, 4)))
    with pytest.raises(MethodError, match="none may clash with its own, but the model has 'graph'; rename 'graph'"):
        cut(model, torch.ones(2, 4), [1])


def test_what_no_layer_reads_is_still_saved():
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.spare = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
            self.alias = self.one.bias
            self.register_buffer("steps", torch.zeros(1))

        def forward(self, x):
            return self.two(self.one(x))

    model = Spare()
    first, last = cut(model, torch.ones(2, 4), [1])
    assert {*first.state_dict(), *last.state_dict()} == set(model.state_dict())
    assert "alias" in first.state_dict()
    assert {"spare.weight", "spare.bias", "steps"} <= set(last.state_dict())
    assert tied_parameters([first, last]) == []


def test_a_stage_runs_with_another_version_of_its_weights():
    model, inputs = vgg().eval(), inputs_of("vgg")
    first, last = cut(model, inputs, [5])
    older = {name: value.detach().clone() for name, value in last.named_parameters()}
    expected = run([first, last], inputs)
    with torch.no_grad():
        for parameter in last.parameters():
            parameter.mul_(2)
    found = torch.func.functional_call(last, older, first(inputs))
    assert torch.equal(found, expected)
