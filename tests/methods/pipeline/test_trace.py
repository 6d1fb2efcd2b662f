"""Tracing: layers as a person would count them, and errors that name the place."""

import pytest
import torch
from tests.methods.pipeline.models import Dense, Gpt, Residual, inputs_of, vgg
from torch import Tensor, nn
from torch.nn import functional as F

from sandtable.errors import MethodError
from sandtable.methods.pipeline import cut, trace


def test_the_children_of_a_sequential_are_its_layers():
    traced = trace(vgg(), inputs_of("vgg"))
    assert traced.names == tuple(str(k) for k in range(12))
    assert traced.edges() == tuple((k, k + 1) for k in range(11))


def test_functions_belong_to_the_layer_before():
    traced = trace(Residual(), inputs_of("residual"))
    assert traced.names[:6] == (
        "stem",
        "blocks.0.conv1",
        "blocks.0.bn1",
        "blocks.0.relu",
        "blocks.0.conv2",
        "blocks.0.bn2",
    )
    by_layer: dict[str, list[str]] = {}
    for node, layer in traced.layer_of.items():
        by_layer.setdefault(traced.names[layer], []).append(node.name)
    assert by_layer["stem"] == ["stem", "relu"]
    assert by_layer["blocks.0.bn2"] == ["blocks_0_bn2", "add"]
    assert by_layer["blocks.0.relu#2"] == ["blocks_0_relu_1"]
    assert (traced.names.index("stem"), traced.names.index("blocks.0.bn2")) in traced.edges()


def test_every_layer_of_a_dense_block_reads_all_before_it():
    traced = trace(Dense(), inputs_of("dense"))
    reads = {(traced.names[source], traced.names[reader]) for source, reader in traced.edges()}
    # The joined features are made once, behind the last layer that they need, and read from there.
    assert ("stem", "block.layer0.0") in reads
    assert ("stem", "block.layer0.2") in reads
    assert ("block.layer0.2", "block.layer1.0") in reads


def test_what_comes_before_the_first_layer_belongs_to_the_layer_that_reads_it():
    traced = trace(Gpt(), inputs_of("gpt"))
    assert traced.names[:3] == ("tokens", "positions", "blocks.0.ln1")
    arange = next(node for node in traced.layer_of if node.name == "arange")
    assert traced.names[traced.layer_of[arange]] == "positions"


def test_a_module_without_modules_inside_is_a_layer_whatever_it_does():
    class Rms(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return x / x.norm() * self.scale if x.sum() > 0 else x

    traced = trace(nn.Sequential(nn.Linear(4, 4), Rms(), nn.Linear(4, 4)), torch.ones(2, 4))
    assert traced.names == ("0", "1", "2")


class Routed(nn.Module):
    """Takes another path for some minibatches."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        if x.sum() > 0:
            return self.one(x)
        return self.two(x)


def test_a_module_that_cannot_be_traced_inside_is_one_layer_and_it_is_said_why():
    traced = trace(nn.Sequential(nn.Linear(4, 4), Routed(), nn.Linear(4, 4)), torch.ones(2, 4))
    assert traced.names == ("0", "1", "2")
    assert list(traced.whole) == ["1"]
    assert "the value of a tensor (if)" in traced.whole["1"]
    assert "test_trace.py:" in traced.whole["1"]


def test_a_model_that_cannot_be_traced_is_refused_with_rule_place_and_remedy():
    with pytest.raises(MethodError) as caught:
        trace(Routed(), torch.ones(2, 4))
    text = str(caught.value)
    assert "to be traced, a model must do the same for every minibatch, but Routed does not: Python asks" in text
    assert "test_trace.py:" in text
    assert "give an nn.Sequential, or cut stages by hand" in text


def test_a_part_without_gradients_is_not_traced_as_if_it_had_them():
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line, self.head = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            with torch.no_grad():
                x = self.line(x)
            return self.head(x)

    traced = trace(nn.Sequential(nn.Linear(4, 4), Frozen()), torch.ones(2, 4))
    assert traced.names == ("0", "1")
    assert "it switches gradients or autocast" in traced.whole["1"]
    with pytest.raises(MethodError, match="it switches gradients or autocast"):
        trace(Frozen(), torch.ones(2, 4))


def test_questions_about_sizes_are_answered_by_the_example():
    class Sized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lines = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

        def forward(self, x):
            assert isinstance(x, Tensor)
            assert x.dim() == 2
            assert x.dtype == torch.float32
            for k in range(min(len(x), len(self.lines))):
                x = self.lines[k](x) * x.shape[0] ** -0.5
            return x.view(x.size(0), -1) if x.is_contiguous() else x

    assert trace(Sized(), torch.ones(2, 4)).names == ("lines.0", "lines.1")


def test_an_error_of_the_model_itself_is_passed_on():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        trace(nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 5)), torch.ones(2, 4))


def test_bad_inputs_are_refused_with_the_rule():
    with pytest.raises(MethodError, match="must be one or more tensors, but got none"):
        trace(vgg(), ())
    with pytest.raises(MethodError, match="must be one or more tensors, but got int; give a training minibatch"):
        trace(vgg(), (3,))  # type: ignore[arg-type]

    class Nothing(nn.Module):
        def forward(self, x):
            return F.relu(x)

    with pytest.raises(MethodError, match="must call modules to have layers, but Nothing calls none"):
        trace(Nothing(), torch.ones(2))


def test_layers_of_a_transformer_encoder_are_layers():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 3)
    traced = trace(nn.Sequential(nn.Linear(4, 8), encoder, nn.Linear(8, 2)), torch.ones(2, 5, 4))
    assert traced.names == ("0", "1.layers.0", "1.layers.1", "1.layers.2", "2")


def test_sizes_of_new_tensors_follow_the_minibatch():
    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(6, 2)

        def forward(self, x):
            rows, columns = x.shape
            return self.line(torch.cat([x, torch.ones(rows, 6 - columns)], dim=1))

    model = Padded()
    (stage,) = cut(model, torch.ones(2, 4))
    assert torch.equal(stage(torch.ones(5, 3)), model(torch.ones(5, 3)))


def test_a_model_that_remembers_is_refused():
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line, self.calls = nn.Linear(4, 4), 0

        def forward(self, x):
            self.calls += 1
            return self.line(x) * self.calls

    with pytest.raises(MethodError, match="must return what the model returns, but Counting returns something else"):
        trace(Counting(), torch.ones(2, 4))


def test_a_model_on_the_meta_device_is_traced_without_memory():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(10**6, 10**5), nn.ReLU(), nn.Linear(10**5, 10**6))
    stages = cut(model, torch.empty(8, 10**6, device="meta"), [2])
    assert stages[1](*stages[0](torch.empty(4, 10**6, device="meta"))).shape == (4, 10**6)


def test_constants_that_forward_makes_are_no_part_of_the_model():
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(4, 4)

        def forward(self, x):
            return self.line(x) * torch.tensor(3.0 if self.training else 1.0)

    model = Scaled()
    before = set(vars(model))
    traced = trace(model, torch.ones(2, 4))
    assert set(vars(model)) == before
    assert not traced.has_both_modes
    (stage,) = cut(model, torch.ones(2, 4))
    assert torch.equal(stage(torch.ones(2, 4)), model(torch.ones(2, 4)))
    assert stage.state_dict().keys() == model.state_dict().keys()


def test_buffers_that_forward_replaces_come_back():
    class Codebook(nn.Module):
        seen: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(2))

        def forward(self, x):
            self.seen = self.seen + 1
            return x

    book = Codebook()
    seen = book.seen
    trace(nn.Sequential(nn.Linear(4, 4), book), torch.ones(2, 4))
    assert book.seen is seen
    assert torch.equal(seen, torch.zeros(2))
