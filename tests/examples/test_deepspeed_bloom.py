"""Bloom under DeepSpeed: what ranks send each other and keep is what theory says, for every stage of ZeRO."""

import functools
from collections import Counter
from math import ceil
from pathlib import Path

import pytest

import sandtable
from sandtable import Launcher, LaunchOptions, Rehearsal
from sandtable.trace import Phase

pytest.importorskip("deepspeed")
pytest.importorskip("transformers")

SCRIPT = Path(__file__).parents[2] / "examples" / "deepspeed_bloom.py"
SIZES = {"tiny": (512, 64, 2), "560m": (250_880, 1024, 24)}
"""Vocabulary, width and layers."""
PARAMETERS = 559_214_592
"""Of bloom-560m."""


def parameter_sizes(size: str) -> list[int]:
    """Return the elements of each parameter: the embedding and its norm, per layer 12, and the last norm."""
    vocabulary, width, layers = SIZES[size]
    products = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)]
    layer = [width] * 4 + [rows * columns for rows, columns in products] + [rows for rows, _ in products]
    return [vocabulary * width, width, width, *layer * layers, width, width]


@pytest.fixture(scope="module")
def launcher():
    with Launcher() as launcher:
        yield launcher


@pytest.fixture(scope="module")
def run(launcher):
    """Return a function that rehearses two steps on 8 ranks per node, once for the same arguments."""

    def run(stage: int, dtype: str = "bf16", nodes: int = 1, size: str = "560m") -> Rehearsal:
        return run_once(stage, dtype, nodes, size)

    @functools.cache
    def run_once(stage: int, dtype: str, nodes: int, size: str) -> Rehearsal:
        options = LaunchOptions(ranks_per_node=8, launcher=launcher)
        flags = ("--zero", str(stage), "--dtype", dtype, "--size", size)
        rehearsal = sandtable.rehearse(SCRIPT, *flags, nodes=nodes, steps=2, options=options)
        assert rehearsal.error is None
        assert rehearsal.trace.num_steps == 2
        assert not any(finding.rule == "unsure-classes" for finding in rehearsal.findings)
        return rehearsal

    return run


def model_calls(rehearsal: Rehearsal) -> Counter[str]:
    """Return the bytes of the second step's collectives of gradients and parameters, by operator."""
    view = rehearsal.trace.rank(0)
    totals: Counter[str] = Counter()
    for call in view.collectives(view.step_slice(2)):
        if call.dtype in ("bfloat16", "float16"):  # others are flags, norms and the order of layers
            totals[call.op] += max(call.bytes_in, call.bytes_out)
    return totals


OPERATORS = {
    0: {"all_reduce"},
    1: {"all_reduce", "all_gather"},
    2: {"all_reduce", "all_gather"},
    3: {"reduce_scatter", "all_gather"},
}


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize(("nodes", "size"), [(1, "560m"), (8, "tiny")])
def test_gradients_and_parameters_travel_once(run, stage, dtype, nodes, size):
    assert sum(parameter_sizes("560m")) == PARAMETERS
    assert model_calls(run(stage, dtype, nodes, size)) == dict.fromkeys(
        OPERATORS[stage], 2 * sum(parameter_sizes(size))
    )


@pytest.mark.parametrize(("stage", "nodes"), [(0, 1), (1, 1), (2, 1), (3, 1), (2, 8), (3, 8)])
def test_each_rank_keeps_its_share_of_the_states(run, stage, nodes):
    rehearsal = run(stage, nodes=nodes)
    share = PARAMETERS / (8 * nodes if stage else 1)
    kept = rehearsal.summary.memory[0].use.bytes_by_category
    assert kept["optimizer"] == pytest.approx(8 * share, rel=1e-3), "two moments in float32"
    if stage < 3:  # which keeps whole parameters only while they are used
        whole, copy = 2 * PARAMETERS, 4 * share
        assert kept["parameters"] == pytest.approx(whole + copy, rel=1e-3), "weights, and the copy that Adam updates"


def test_3072_ranks_are_two_classes_and_take_seconds(run):
    rehearsal = run(2, nodes=384)
    assert len(rehearsal.trace.classes) == 2, "rank 0, which reads the loss, and all others"
    assert len(rehearsal.trace.captured_ranks) <= 16
    assert model_calls(rehearsal) == {"all_reduce": 2 * PARAMETERS, "all_gather": 2 * PARAMETERS}
    assert rehearsal.trace.wall_seconds < 90


def test_3072_ranks_of_zero_3_pad_each_parameter_to_equal_shards(run):
    """A bias of 1,024 elements has shards of one for the first 1,024 ranks; the others are one class with them."""
    rehearsal = run(3, nodes=384)
    assert len(rehearsal.trace.classes) == 2
    padded = sum(2 * 3072 * ceil(size / 3072) for size in parameter_sizes("560m"))
    assert model_calls(rehearsal) == {"reduce_scatter": padded, "all_gather": padded}
    assert rehearsal.trace.wall_seconds < 90


@pytest.mark.parametrize("optimizer", ["Lamb", "Lion"])
def test_other_fused_optimizers_run(launcher, tmp_path, optimizer):
    text = SCRIPT.read_text(encoding="utf-8").replace('"type": "Adam"', f'"type": "{optimizer}"')
    assert optimizer in text
    script = tmp_path / "bloom.py"
    script.write_text(text, encoding="utf-8")
    options = LaunchOptions(ranks_per_node=2, launcher=launcher)
    rehearsal = sandtable.rehearse(script, "--size", "tiny", "--zero", "0", "--seq-len", "16", steps=2, options=options)
    assert rehearsal.step_seconds > 0
    assert any("deepspeed::" in signature.op for signature in rehearsal.trace.signatures)


def test_groups_of_parameters_make_one_step_together(launcher, tmp_path):
    """ZeRO calls the optimizer once per group, such as those with weight decay and those without."""
    text = SCRIPT.read_text(encoding="utf-8").replace(
        "model_parameters=model.parameters()",
        "model_parameters=[{'params': [p for p in model.parameters() if (p.dim() > 1) == m]} for m in (True, False)]",
    )
    script = tmp_path / "bloom.py"
    script.write_text(text, encoding="utf-8")
    options = LaunchOptions(ranks_per_node=2, launcher=launcher)
    rehearsal = sandtable.rehearse(script, "--size", "tiny", "--zero", "2", "--seq-len", "16", steps=2, options=options)
    view = rehearsal.trace.rank(0)
    assert len([call for call in view.collectives(view.step_slice(2)) if call.op == "all_gather"]) == 2
    assert {op.phase for op in view.operators(view.step_slice(2))} >= {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}


def test_offloaded_states_are_in_host_memory_and_updated_there(launcher, tmp_path):
    text = SCRIPT.read_text(encoding="utf-8").replace(
        '{"stage": args.zero}', '{"stage": args.zero, "offload_optimizer": {"device": "cpu", "pin_memory": True}}'
    )
    script = tmp_path / "bloom.py"
    script.write_text(text, encoding="utf-8")
    options = LaunchOptions(ranks_per_node=2, launcher=launcher)
    rehearsal = sandtable.rehearse(script, "--size", "tiny", "--zero", "2", "--seq-len", "16", steps=2, options=options)
    assert rehearsal.error is None
    update = next(signature for signature in rehearsal.trace.signatures if signature.op == "deepspeed::cpu_adam")
    assert update.work is not None
    share = sum(parameter_sizes("tiny")) // 2
    assert update.work.bytes_read == 16 * share, "parameters, gradients and two moments in float32"
    assert rehearsal.summary.memory[0].use.bytes_by_category["optimizer"] == 0
