"""torch.compile in a rehearsal: the model runs unchanged, and a message appears once."""

# Bodies are scripts: they use torch as scripts do, which is more than its annotations know.
# mypy: disable-error-code="attr-defined"

import torch
from tests.vgpu.virtual import on_gpu, rehearse
from torch import nn


@on_gpu()
def test_a_compiled_model_is_the_model():
    model = nn.Linear(4, 2).cuda()
    compiled = torch.compile(model)
    x = torch.rand(3, 4, device="cuda")
    assert torch.equal(compiled(x), model(x))
    compiled(x).sum().backward()
    assert model.weight.grad is not None
    assert [name for name, _ in compiled.named_parameters()] in (
        ["weight", "bias"],
        ["_orig_mod.weight", "_orig_mod.bias"],
    )
    torch.compile(model, mode="max-autotune", fullgraph=True, dynamic=True, backend="inductor", options=None)(x)


@on_gpu()
def test_compile_decorates_functions_with_and_without_options():
    @torch.compile
    def plain(x):
        return x * 2

    @torch.compile(mode="reduce-overhead", fullgraph=True)
    def chosen(x):
        return x * 3

    x = torch.ones(2, device="cuda")
    assert plain(x).tolist() == [2, 2]
    assert chosen(x).tolist() == [3, 3]


@on_gpu()
def test_a_module_compiles_itself_in_place():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).cuda()
    model.compile(mode="default")
    assert model(torch.rand(2, 4, device="cuda")).shape == (2, 4)
    for layer in model:
        layer.compile()
    assert model(torch.rand(2, 4, device="cuda")).shape == (2, 4)


@on_gpu()
def test_helpers_of_the_compiler_are_harmless():
    assert torch.compiler.is_compiling() is False
    torch._dynamo.config.cache_size_limit = 64
    torch._dynamo.reset()
    torch.compiler.reset()
    torch.compiler.cudagraph_mark_step_begin()

    @torch.compiler.disable
    def plain(x):
        return x + 1

    @torch._dynamo.disable
    def other(x):
        return x + 1

    assert plain(torch.ones(1, device="cuda")).item() == other(torch.ones(1, device="cuda")).item() == 2


@on_gpu()
def test_a_compiled_optimizer_step_runs():
    model = nn.Linear(4, 4).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.rand(2, 4, device="cuda")).sum().backward()
    step = torch.compile(lambda: optimizer.step())
    step()
    assert optimizer.state[model.weight]["step"].item() == 1


def compile_three_times() -> None:
    for _ in range(2):
        torch.compile(nn.Linear(2, 2).cuda())(torch.ones(1, 2, device="cuda"))
    model = nn.Linear(2, 2).cuda()
    model.compile()
    model(torch.ones(1, 2, device="cuda"))


def test_that_compile_runs_eagerly_is_said_once_and_noted():
    done = rehearse(compile_three_times)
    said = [text for _, text in done.err if "torch.compile" in text]
    assert said == ["sandtable: torch.compile runs the model eagerly in a rehearsal"]
    assert done.notes("torch.compile")


def compile_in_place() -> None:
    model = nn.Linear(2, 2).cuda()
    model.compile()
    model(torch.ones(1, 2, device="cuda"))


def test_compiling_in_place_is_said_too():
    assert rehearse(compile_in_place).notes("torch.compile")
