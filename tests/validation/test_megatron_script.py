"""The Megatron-style script: splitting the model does not change what it learns, and it makes the calls it should."""

import math
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from tests.torchrun import torchrun
from tests.vgpu.capturing import capture

from sandtable.trace import Phase, Trace

SCRIPT = Path(__file__).parents[2] / "validation" / "scripts" / "megatron_gpt.py"
MODERN = ("--fused-wgrad", "--async-tensor", "--init-optimizer")


@cache
def losses(num_processes: int, *flags: str) -> tuple[float, ...]:
    """Three steps over gloo, in fp32 and without dropout unless `flags` say otherwise."""
    done = torchrun(num_processes, SCRIPT, "--dtype", "float32", "--dropout", "0", *flags, timeout_s=400)
    assert done.returncode == 0, done.stderr[-4000:]
    found = tuple(float(loss) for loss in re.findall(r"^step \d+ loss (\S+)$", done.stdout, re.MULTILINE))
    assert len(found) == 3
    assert all(map(math.isfinite, found))
    return found


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("num_processes", "flags"),
    [
        (2, ("--tp", "2")),
        (2, ("--pp", "2")),
        (2, ("--pp", "2", "--recompute", "full")),
        (2, ("--ddp", "torch", "--recompute", "full")),
        (4, ("--tp", "2", "--pp", "2", "--scatter-gather", "--recompute", "full")),
        (4, ("--tp", "2", "--pp", "2", "--sequence-parallel", "--recompute", "selective", *MODERN)),
    ],
    ids=["tp", "pp", "pp-recompute", "ddp", "tp-pp-scatter", "tp-pp-sequence"],
)
def test_a_split_model_learns_what_a_whole_one_does(num_processes: int, flags: tuple[str, ...]) -> None:
    assert losses(num_processes, *flags) == pytest.approx(losses(1), rel=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("flags", [("--layers", "6"), ("--layers", "4", "--short-ends")], ids=["even", "short-ends"])
@pytest.mark.parametrize("num_micro", ["3", "6"])
def test_interleaved_stages_learn_what_one_process_does(flags: tuple[str, ...], num_micro: str) -> None:
    batch = ("--global-batch", num_micro)
    alone = losses(1, "--layers", flags[1], *batch)
    assert losses(3, "--pp", "3", "--virtual-stages", "2", *flags, *batch) == pytest.approx(alone, rel=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_recomputation_draws_the_same_dropout_again() -> None:
    dropout = ("--tp", "2", "--dropout", "0.1")
    assert losses(2, *dropout, "--recompute", "full") == pytest.approx(losses(2, *dropout), rel=1e-5)
    assert losses(2, *dropout) != losses(2, "--tp", "2")


def layer_calls(*flags: str) -> Counter[tuple[str, Phase]]:
    """Collectives that a layer adds to a micro-batch, by operator and phase, on virtual GPUs."""
    shape = ("--hidden", "1024", "--heads", "8", "--seq", "256", "--vocab", "1024", "--global-batch", "2", "--tp", "2")
    few, many = (
        calls_of_step(capture(SCRIPT, *shape, "--init-optimizer", "--steps", 1, "--layers", num, *flags, world_size=2))
        for num in (2, 4)
    )
    return Counter({key: (count - few[key]) / 4 for key, count in many.items() if count != few[key]})


def calls_of_step(trace: Trace) -> Counter[tuple[str, Phase]]:
    view = trace.rank(0)
    return Counter((call.op, call.phase) for call in view.collectives(view.step_slices()[-1]))


def test_a_layer_reduces_twice_each_way() -> None:
    assert layer_calls() == {("all_reduce", Phase.FORWARD): 2, ("all_reduce", Phase.BACKWARD): 2}


def test_recomputing_a_layer_reduces_twice_more() -> None:
    assert sum(layer_calls("--recompute", "full").values()) == 6


def test_sequence_parallelism_gathers_and_scatters() -> None:
    calls = layer_calls("--sequence-parallel", "--recompute", "selective")
    assert not any(op == "all_reduce" for op, _ in calls)
    assert calls["all_gather", Phase.FORWARD] == calls["reduce_scatter", Phase.FORWARD] == 2
    # Backward gathers the gradient that left each pair and, again, the input of each pair's first linear.
    assert (calls["all_gather", Phase.BACKWARD], calls["reduce_scatter", Phase.BACKWARD]) == (4, 2)
