"""Profiling: every layer timed, bytes counted, and a file that the partitioner reads."""

import json
import time
from statistics import median

import pytest
import torch
from tests.methods.pipeline.models import FAMILIES, Gpt, Residual, inputs_of, vgg
from torch import nn
from torch.nn import functional as F

from sandtable.errors import MethodError
from sandtable.methods.pipeline import Profile, ProfileRequest, cut, make_input, measure_profile, profile, trace
from sandtable.planner import Level, partition, read_profile


def test_the_layers_together_take_about_as_long_as_a_step(monkeypatch):
    monkeypatch.setattr(time, "perf_counter", time.process_time)  # a busy machine takes time from both
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 256, 256),
        nn.Linear(256, 10),
    )
    inputs, targets = torch.randn(16, 3, 16, 16), torch.randint(10, (16,))

    def loss(output: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output, targets)

    def ratio() -> float:
        layers = profile(model, inputs, num_batches=7, loss=loss, show_progress=False).seconds
        steps = []
        for _ in range(8):
            model.zero_grad()
            start = time.process_time()
            loss(model(inputs)).backward()
            steps.append(time.process_time() - start)
        return layers / median(steps[1:])

    ratios = [ratio() for _ in range(3)]
    torch.set_num_threads(num_threads)
    assert 0.6 < median(ratios) < 1.6


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_bytes_are_those_of_parameters_and_of_what_is_handed_on(family):
    model, inputs = FAMILIES[family](), inputs_of(family)
    found = profile(model, inputs, num_batches=1, show_progress=False)
    assert [layer.name for layer in found.layers] == list(trace(model, inputs).names)
    own = sum(parameter.numel() * 4 for parameter in model.parameters())
    tied = 32 * 8 * 4 if family == "gpt" else 0  # its weight counts in both of its layers
    assert sum(layer.weight_bytes for layer in found.layers) == own + tied
    assert all(layer.forward_s > 0 for layer in found.layers)
    assert all(layer.backward_s > 0 for layer in found.layers)


def test_what_crosses_a_cut_of_the_chain_is_what_leaves_the_stage(tmp_path):
    model, inputs = Residual(), inputs_of("residual")
    profile(model, inputs, num_batches=1, show_progress=False).save(tmp_path / "profile.json")
    chain = read_profile(tmp_path / "profile.json")
    assert [layer.name for layer in chain.layers] == list(trace(model, inputs).names)
    for boundary in range(1, len(chain), 3):
        leaving = cut(model, inputs, [boundary])[0](inputs)
        assert chain.cut_bytes[boundary - 1] == sum(each.numel() * each.element_size() for each in leaving)


def test_boundaries_of_the_partitioner_cut_the_model(tmp_path):
    model, inputs = vgg().eval(), inputs_of("vgg")
    profile(model, inputs, num_batches=1, show_progress=False).save(tmp_path / "profile.json")
    found = partition(read_profile(tmp_path / "profile.json"), [Level(machines=3, bandwidth_bytes_per_s=1e6)])
    stages = cut(model, inputs, [stage.first for stage in found.stages[1:]])
    assert [len(stage.layer_names) for stage in stages] == [stage.last - stage.first + 1 for stage in found.stages]


def test_profiling_leaves_the_model_as_it_is():
    model, inputs = vgg(), inputs_of("vgg")
    model(inputs).sum().backward()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = [parameter.grad for parameter in model.parameters()]
    before = inputs.clone()
    profile(model, inputs, num_batches=2, show_progress=False)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is gradient for parameter, gradient in zip(model.parameters(), gradients, strict=True))
    assert torch.equal(inputs, before)


def test_the_loss_is_part_of_the_last_layer():
    def slow(output: torch.Tensor) -> torch.Tensor:
        time.sleep(0.02)
        return output.sum()

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    found = profile(model, torch.ones(2, 4), num_batches=3, loss=slow, show_progress=False)
    assert found.layers[1].forward_s > 0.02
    assert found.layers[0].forward_s < 0.02


def test_what_needs_no_gradient_has_no_backward_to_speak_of():
    model = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512), nn.Linear(512, 512))
    model[0].requires_grad_(False)
    model[1].requires_grad_(False)
    first, second, last = profile(model, torch.ones(64, 512), num_batches=5, show_progress=False).layers
    assert max(first.backward_s, second.backward_s) < last.backward_s / 2


def test_a_profile_is_the_same_from_its_file_in_both_forms(tmp_path):
    found = profile(Gpt(), inputs_of("gpt"), num_batches=1, show_progress=False)
    found.save(tmp_path / "profile.json")
    data = json.loads((tmp_path / "profile.json").read_text())
    assert (data["format"], data["version"]) == ("sandtable-profile", 1)
    assert (data["basis"], data["device"], data["inputs"]) == ("measured", "cpu", ["3×6 int64"])
    assert Profile.load(tmp_path / "profile.json") == found
    found.save(tmp_path / "graph.txt")
    ours, published = read_profile(tmp_path / "profile.json"), read_profile(tmp_path / "graph.txt")
    assert published.cut_bytes == ours.cut_bytes
    for one, other in zip(published.layers, ours.layers, strict=True):
        assert one.weight_bytes == other.weight_bytes
        assert one.seconds == pytest.approx(other.seconds, abs=1e-8)


def test_bad_settings_are_refused_with_the_rule():
    with pytest.raises(MethodError, match="at least one minibatch, but got num_batches=0"):
        profile(vgg(), inputs_of("vgg"), num_batches=0)
    with pytest.raises(MethodError, match=r"a tensor of one number, but got \(3, 5\); give a function such as"):
        profile(vgg(), inputs_of("vgg"), loss=lambda output: output, show_progress=False)


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [
        ("64,3,8", (64, 3, 8), torch.float32),
        ("4x5:bfloat16", (4, 5), torch.bfloat16),
        ("8,16:int64:7", (8, 16), torch.int64),
    ],
)
def test_inputs_are_made_from_shape_type_and_bound(text, shape, dtype):
    made = make_input(text)
    assert (tuple(made.shape), made.dtype) == (shape, dtype)
    if not dtype.is_floating_point:
        assert 0 <= int(made.min()) <= int(made.max()) < 7


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"function": "nowhere:model"}, "there is no 'nowhere:model'; for example models:vgg16"),
        ({"function": "tests.methods.pipeline.models:nothing"}, "as MODULE:FUNCTION, but there is no"),
        ({"function": "tests.methods.pipeline.models"}, "as MODULE:FUNCTION, but there is no"),
        ({"function": "tests.methods.pipeline.models:vgg"}, "returns only the model; add its inputs, as in --input"),
        ({"function": "tests.methods.pipeline.models:vgg", "inputs": ("3,",)}, "must be a shape, .* but got '3,'"),
        ({"function": "time:time"}, "must return an nn.Module, .* but returned float"),
        (
            {"function": "tests.methods.pipeline.models:vgg", "inputs": ("2,3,8,8",), "device": "abacus"},
            "the device must be available here .* but got 'abacus'",
        ),
        (
            {"function": "tests.methods.pipeline.profiled:deep", "inputs": ("2,8,8",)},
            r"deep does not accept \(2, 8, 8\) float32: RuntimeError .*; give others with --input",
        ),
        (
            {"function": "tests.methods.pipeline.profiled:with_words"},
            "inputs must be one or more tensors, but .*:with_words returns str among them",
        ),
        (
            {"function": "tests.methods.pipeline.profiled:of_width", "inputs": ("2,8",)},
            "called without arguments, but .*:of_width needs some: missing a required argument: 'width'",
        ),
        (
            {"function": "tests.methods.pipeline.profiled:deep", "inputs": ("2,8:int64:0",)},
            "random values of its type below its bound, but '2,8:int64:0' has none",
        ),
        (
            {"function": "tests.methods.pipeline.profiled:deep", "inputs": ("2,8:int8:50257",)},
            "random values of its type below its bound, but '2,8:int8:50257' has none",
        ),
    ],
)
def test_requests_that_cannot_be_met_are_refused_with_the_remedy(settings, message):
    with pytest.raises(MethodError, match=message):
        measure_profile(ProfileRequest(**settings))
