"""`sandtable profile` as a user types it: on this machine, and for a card that is not here."""

import json
import sys
from unittest import mock

import pytest
import torch
from tests.methods.pipeline.profiled import deep
from tests.vgpu.virtual import ROOT, on_shared_launcher, rehearse
from typer.testing import CliRunner

from sandtable.cli import app
from sandtable.cluster import load
from sandtable.engine import simulate
from sandtable.errors import LaunchError, MethodError, ScriptError
from sandtable.planner import read_profile

RUNNER = CliRunner()
HERE = "tests.methods.pipeline.profiled"


@pytest.fixture(autouse=True)
def _at_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def run(*arguments: str) -> str:
    with on_shared_launcher(), mock.patch.object(sys, "argv", ["sandtable", "profile", *arguments]):
        done = RUNNER.invoke(app, ["profile", *arguments])
    if done.exception is not None:
        raise done.exception
    return done.stdout


def test_a_model_is_timed_on_this_machine(tmp_path, monkeypatch):
    (tmp_path / "in_this_directory.py").write_text((ROOT / "tests/methods/pipeline/profiled.py").read_text())
    monkeypatch.chdir(tmp_path)
    text = run("in_this_directory:deep", "--input", "2,3,16,16", "--batches", "2", "--device", "cpu")
    assert "Sequential on cpu, inputs 2×3×16×16 float32: 14 layers, median of 2 minibatches" in text
    assert "BatchNorm2d" in text
    assert len(read_profile(tmp_path / "profile.json")) == 14


def test_the_function_may_give_inputs_and_loss_and_the_profile_is_printed_as_json(tmp_path):
    out = str(tmp_path / "profile.json")
    data = json.loads(run(f"{HERE}:with_loss", "--batches", "1", "--device", "cpu", "--json", "--out", out))
    assert data["inputs"] == ["4×8 float32"]
    assert [layer["kind"] for layer in data["layers"]] == ["Linear"]


def test_a_module_that_is_one_layer_for_want_of_a_trace_is_named(tmp_path):
    text = run(f"{HERE}:routed", "--batches", "1", "--device", "cpu", "--out", str(tmp_path / "profile.json"))
    assert "module '1' is one layer: Python asks for the value of a tensor (if)" in text.replace("\n", " ")
    assert list(json.loads((tmp_path / "profile.json").read_text())["whole"]) == ["1"]


def whole_step() -> None:
    """Run the same model at once, between two events."""
    model, inputs = deep().cuda(), torch.randn(64, 3, 64, 64).cuda()
    for _ in range(2):
        torch.cuda.Event(enable_timing=True).record()
        model(inputs).sum().backward()
        torch.cuda.Event(enable_timing=True).record()
        model.zero_grad()


def test_for_a_card_that_is_not_here_the_layers_come_to_the_predicted_step(tmp_path):
    run(f"{HERE}:deep", "--input", "64,3,64,64", "--cluster", "dgx-a100", "--out", str(tmp_path / "a100.json"))
    data = json.loads((tmp_path / "a100.json").read_text())
    assert (data["basis"], data["device"]) == ("predicted", "NVIDIA A100-SXM4-80GB")
    chain = read_profile(tmp_path / "a100.json")
    timeline = simulate(rehearse(whole_step).trace, load("dgx-a100", nodes=1))
    begin, end = timeline.event_times_ns(0)[-2:].tolist()
    assert chain.seconds == pytest.approx((end - begin) / 1e9, rel=0.15)
    assert [layer.name for layer in chain.layers if layer.forward_s == 0] == ["12"]  # flattening moves nothing
    first, second = chain.layers[0], chain.layers[2]
    assert second.seconds > first.seconds  # 64 channels in instead of 3


def test_a_faster_card_is_faster(tmp_path):
    seconds = {}
    for cluster in ("dgx-a100", "dgx-h100"):
        arguments = (f"{HERE}:deep", "--input", "256,3,64,64", "--cluster", cluster, "--out", str(tmp_path / "p"))
        seconds[cluster] = sum(layer["forward_s"] for layer in json.loads(run(*arguments, "--json"))["layers"])
    assert seconds["dgx-h100"] < seconds["dgx-a100"]


def test_what_is_refused_here_is_refused_there_and_a_full_card_is_an_error_too():
    with pytest.raises(LaunchError, match="--out must be a file that can be written"):
        run(f"{HERE}:branching", "--out", str(ROOT / "README.md" / "profile.json"))
    with pytest.raises(LaunchError, match=r"--out must be a file that can be written, but .* is a directory"):
        run(f"{HERE}:deep", "--input", "2,3,8,8", "--out", str(ROOT))
    for place in (("--device", "cpu"), ("--cluster", "dgx-a100")):
        with pytest.raises(MethodError, match=r"Branching does not: .*profiled.py:\d+; move the part"):
            run(f"{HERE}:branching", *place)
    with pytest.raises(ScriptError, match="OutOfMemoryError"):
        run(f"{HERE}:deep", "--input", "65536,3,224,224", "--cluster", "dgx-a100")


def test_help_shows_examples():
    assert "sandtable profile models:vgg16 --input 64,3,224,224 --out profile.json" in run("--help")
