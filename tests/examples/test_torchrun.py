"""The examples under torchrun, on CPU with gloo: they train, and splitting the model does not change the loss."""

import math
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
from tests.torchrun import torchrun

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.slow


@cache
def losses(num_processes: int, script: str, *flags: str) -> tuple[float, ...]:
    """Run an example to its end and return the losses it printed."""
    done = launch(num_processes, script, *flags)
    assert done.returncode == 0, done.stderr[-4000:]
    found = re.findall(r"^step (\d+) loss (\S+)$", done.stdout, re.MULTILINE)
    assert [int(step) for step, _ in found] == list(range(1, len(found) + 1)), "one rank prints one line a step"
    values = tuple(float(loss) for _, loss in found)
    assert values
    assert all(map(math.isfinite, values))
    return values


def launch(num_processes: int, script: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """One example under torchrun."""
    return torchrun(num_processes, EXAMPLES / script, *flags)


def single_process(batch: int) -> tuple[float, ...]:
    """Three steps of the whole model in one process, no clipping, fp32."""
    return losses(1, "gpt_3d.py", "--dtype", "float32", "--global-batch", str(batch))


FULL_3D = ("--tp", "2", "--pp", "2", "--dtype", "float32")


@pytest.mark.parametrize(
    ("num_processes", "flags"),
    [
        (4, FULL_3D),
        (4, (*FULL_3D, "--sequence-parallel", "--recompute", "full", "--micro-batch", "2")),
        (4, (*FULL_3D, "--schedule", "interleaved")),
        (4, ("--tp", "2", "--sequence-parallel", "--dtype", "float32")),
        (4, ("--pp", "2", "--schedule", "gpipe", "--recompute", "full", "--dtype", "float32")),
    ],
    ids=["tp-pp", "tp-pp-sp-recompute", "tp-pp-interleaved", "tp-dp-sp", "pp-dp-gpipe-recompute"],
)
def test_3d_parallel_loss_equals_single_process(num_processes: int, flags: tuple[str, ...]) -> None:
    # All three steps: the second and third also need every gradient to be right.
    assert losses(num_processes, "gpt_3d.py", *flags) == pytest.approx(single_process(8), abs=1e-4)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_pipeline_loss_equals_single_process(schedule: str) -> None:
    assert losses(2, "gpt_pp.py", "--schedule", schedule) == pytest.approx(single_process(8), abs=1e-4)


@pytest.mark.parametrize(
    "flags",
    [("--tp", "2"), ("--tp", "4", "--micro-batch", "4", "--recompute", "full"), ("--tp", "2", "--sequence-parallel")],
)
def test_a_plain_model_split_by_a_plan_has_the_loss_of_a_single_process(flags: tuple[str, ...]) -> None:
    assert losses(4, "tensor_parallel_gpt.py", *flags) == pytest.approx(single_process(4), abs=1e-4)


@pytest.mark.parametrize("tp", ["1", "2", "4"])
def test_channels_and_batch_may_be_split_in_any_proportion(tp: str) -> None:
    one_process = losses(1, "tensor_parallel_cnn.py")
    assert losses(4, "tensor_parallel_cnn.py", "--tp", tp) == pytest.approx(one_process, abs=1e-4)


def test_a_plain_model_in_stages_of_split_layers_has_the_loss_of_a_single_process() -> None:
    flags = ("--pp", "2", "--tp", "2", "--batch", "8")
    assert losses(4, "pipeline_gpt.py", *flags) == pytest.approx(single_process(8), abs=1e-4)


@pytest.mark.parametrize("flags", [(), ("--ep", "2"), ("--recompute", "full")], ids=["ep-4", "ep-2", "recompute"])
def test_experts_may_be_spread_over_ranks_without_changing_the_loss(flags: tuple[str, ...]) -> None:
    one_process = losses(1, "moe.py", "--micro-batch", "4")
    assert losses(4, "moe.py", "--micro-batch", "1", *flags) == pytest.approx(one_process, abs=1e-4)


@pytest.mark.parametrize("flags", [("--tp", "2"), ("--tp", "4", "--micro-batch", "4", "--recompute", "full")])
def test_dtensor_tensor_parallel_loss_equals_single_process(flags: tuple[str, ...]) -> None:
    assert losses(4, "gpt_tp.py", *flags) == pytest.approx(single_process(4), abs=1e-4)


@pytest.mark.parametrize(
    ("script", "flags"),
    [
        ("gpt_ddp.py", ("--amp", "none", "--accumulate", "2", "--micro-batch", "1", "--clip", "1e9")),
        ("gpt_fsdp2.py", ("--param-dtype", "float32", "--clip", "0")),
        ("gpt_fsdp2.py", ("--param-dtype", "float32", "--clip", "0", "--reshard", "false", "--recompute", "full")),
        ("gpt_fsdp1.py", ("--param-dtype", "float32", "--clip", "0")),
    ],
)
def test_data_parallel_loss_equals_single_process(script: str, flags: tuple[str, ...]) -> None:
    assert losses(2, script, *flags) == pytest.approx(single_process(4), abs=1e-4)


@pytest.mark.parametrize(
    ("script", "flags"),
    [
        ("gpt_ddp.py", ("--fused", "--recompute", "full")),
        ("gpt_ddp.py", ("--amp", "float16")),
        ("gpt_fsdp2.py", ("--accumulate", "2")),
        ("gpt_fsdp1.py", ("--strategy", "grad")),
        ("gpt_3d.py", ("--tp", "2", "--sequence-parallel")),
        ("resnet_ddp.py", ("--steps", "6", "--channels-last")),
        ("resnet_ddp.py", ("--steps", "6", "--workers", "1")),
    ],
)
def test_loss_falls(script: str, flags: tuple[str, ...]) -> None:
    values = losses(2, script, *flags)
    assert values[-1] < values[0]


@pytest.mark.parametrize(
    ("num_processes", "script", "flags", "message"),
    [
        (2, "gpt_3d.py", ("--tp", "3"), r"tp x pp \(3\) must divide world size \(2\); try 1, 2"),
        (2, "gpt_3d.py", ("--dp", "4"), r"must be the world size \(2\); try --dp 2"),
        (2, "gpt_3d.py", ("--global-batch", "3"), r"dp \(2\) must divide global_batch \(3\); try 1, 3"),
        (1, "gpt_pp.py", ("--micro-batch", "3"), r"micro_batch \(3\) must divide batch \(8\); try 1, 2, 4, 8"),
        (2, "moe.py", ("--experts", "3"), r"ep \(2\) must divide experts \(3\); try 1, 3"),
        (2, "gpt_tp.py", ("--seq-len", "31"), r"tp \(2\) must divide seq_len \(31\); try 1, 31"),
    ],
)
def test_size_that_does_not_divide_gets_rule_value_and_remedy(
    num_processes: int, script: str, flags: tuple[str, ...], message: str
) -> None:
    done = launch(num_processes, script, *flags)
    assert done.returncode != 0
    assert re.search(message, done.stderr)
