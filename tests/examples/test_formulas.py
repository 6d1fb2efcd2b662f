"""formulas.py against what the examples really do on CPU with gloo, and against published parameter counts."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.examples import formulas
from tests.examples.formulas import Call, Layout
from tests.torchrun import torchrun

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A GPT's shape."""

    num_layers: int
    hidden_size: int
    vocab_size: int
    seq_len: int


TINY = Shape(num_layers=4, hidden_size=64, vocab_size=512, seq_len=16)  # with --seq-len 16


@pytest.mark.parametrize(
    ("num_layers", "hidden", "billions"),
    [
        (24, 2304, 1.7),
        (40, 6144, 18.4),
        (80, 12288, 145.6),
        (96, 12288, 174.6),
        (105, 20480, 529.6),
        (128, 25600, 1008),
    ],
)
def test_parameter_count_is_the_published_one(num_layers: int, hidden: int, billions: float) -> None:
    shape = Shape(num_layers=num_layers, hidden_size=hidden, vocab_size=51200, seq_len=2048)
    assert round(formulas.gpt_parameters(shape, tied_head=True) / 1e9, 1) == billions


def test_ranks_of_a_pipeline_hold_the_model_exactly_once() -> None:
    layout = Layout(pp=2, virtual_stages=2)
    assert sum(formulas.rank_parameters(TINY, layout, pp_rank=r) for r in range(2)) == formulas.gpt_parameters(TINY)


def test_flops_approach_the_published_formula_with_full_recompute() -> None:
    # 96 B s l h^2 (1 + s / 6h + V / 16lh). It counts attention's backward as 4 products, not 5.
    shape = Shape(num_layers=96, hidden_size=12288, vocab_size=51200, seq_len=2048)
    layout = Layout(recompute=True)
    published = 96 * 2048 * 96 * 12288**2 * (1 + 2048 / (6 * 12288) + 51200 / (16 * 96 * 12288))
    assert formulas.rank_step_flops(shape, layout, pp_rank=0) == pytest.approx(published, rel=0.01)


def observe(tmp_path: Path, num_processes: int, script: str, *flags: str) -> list[list[dict[str, Any]]]:
    """What each rank did in each step."""
    done = torchrun(num_processes, HERE / "count_work.py", str(tmp_path), str(EXAMPLES / script), *flags)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(num_processes)]


def plain(calls: Counter[Call]) -> dict[str, int]:
    """As count_work.py writes them, which does not know axes."""
    found: Counter[str] = Counter()
    for call, count in calls.items():
        found[f"{call.op}/{call.bytes_in}/{call.bytes_out}"] += count
    return dict(found)


@pytest.mark.slow
@pytest.mark.parametrize("amp", ["none", "bfloat16"])
def test_ddp_step_is_as_the_formula_says_one_step_after_the_other(tmp_path: Path, amp: str) -> None:
    flags = ("--seq-len", "16", "--bucket-mb", "0.1", "--accumulate", "2", "--recompute", "full", "--amp", amp)
    for rank in observe(tmp_path, 2, "gpt_ddp.py", *flags):
        for step in (1, 2, 3):
            gradients = formulas.gpt_gradients_in_order(TINY, amp=amp != "none")
            expected = formulas.ddp_step_calls(gradients, step=step, bucket_bytes=0.1 * 2**20)
            observed = rank[step - 1]["calls"]
            if step == 1:  # and what DDP's constructor does: compare the parameters' shapes, send rank 0's values
                observed = {call: count for call, count in observed.items() if call.startswith("all_reduce")}
            assert observed == plain(expected)
            assert rank[step - 1]["flops"] == formulas.gpt_step_flops(TINY, tokens=64, recompute=True)
            assert rank[step - 1]["parameters"] == formulas.gpt_parameters(TINY)


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "counts", "is_bottleneck"), [(18, (2, 2, 2, 2), False), (50, (3, 4, 6, 3), True)])
def test_resnet_step_is_as_the_formula_says(
    tmp_path: Path, depth: int, counts: tuple[int, ...], is_bottleneck: bool
) -> None:
    layers = formulas.resnet_convolutions(counts=counts, is_bottleneck=is_bottleneck, width=8, image_size=40)
    num_parameters = formulas.resnet_parameters(layers, num_classes=10)
    expected = formulas.ddp_step_calls(
        [num_parameters], step=3, bucket_bytes=1e9, buffers=formulas.resnet_buffers(layers)
    )
    flags = ("--depth", str(depth), "--image-size", "40", "--batch", "4", "--bucket-mb", "1000")
    step = observe(tmp_path, 2, "resnet_ddp.py", *flags)[1][2]
    assert step["parameters"] == num_parameters
    assert step["flops"] == formulas.resnet_step_flops(layers, batch=4, num_classes=10)
    assert step["calls"] == plain(expected)


@pytest.mark.slow
@pytest.mark.parametrize(("reshard", "num_micro", "num_ranks"), [(True, 2, 2), (False, 2, 2), (True, 1, 3)])
def test_fsdp2_step_is_as_the_formula_says(tmp_path: Path, reshard: bool, num_micro: int, num_ranks: int) -> None:
    expected = formulas.fsdp2_step_calls(
        TINY, ranks=num_ranks, param_bytes=2, reduce_bytes=4, num_micro=num_micro, reshard=reshard
    )
    flags = ("--seq-len", "16", "--reshard", str(reshard).lower(), "--accumulate", str(num_micro))
    for index, rank in enumerate(observe(tmp_path, num_ranks, "gpt_fsdp2.py", *flags)):
        assert rank[1]["calls"] == plain(expected)
        assert rank[1]["flops"] == formulas.gpt_step_flops(TINY, tokens=2 * 16 * num_micro)
        assert rank[1]["parameters"] == formulas.fsdp2_parameters(TINY, ranks=num_ranks, rank=index)


@pytest.mark.slow
@pytest.mark.parametrize("recompute", [False, True])
def test_dtensor_step_is_as_the_formula_says(tmp_path: Path, recompute: bool) -> None:
    expected = formulas.dtensor_tp_step_calls(TINY, batch=3, tp=2, dp=2, element_bytes=4, recompute=recompute)
    flags = ("--seq-len", "16", "--tp", "2", "--micro-batch", "3", "--recompute", "full" if recompute else "none")
    for rank in observe(tmp_path, 4, "gpt_tp.py", *flags):
        assert rank[1]["calls"] == plain(expected)
        assert rank[1]["flops"] == formulas.dtensor_tp_flops(TINY, tokens=48, tp=2, recompute=recompute)
        assert rank[1]["parameters"] == formulas.dtensor_tp_parameters(TINY, tp=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "flags"),
    [
        (Layout(tp=2, pp=2, num_micro=8), ()),
        (Layout(tp=2, pp=2, num_micro=4, micro_batch=2, sequence_parallel=True, recompute=True), ()),
        (Layout(tp=1, pp=2, dp=2, num_micro=4, virtual_stages=2), ("--schedule", "interleaved")),
        (Layout(tp=2, dp=2, num_micro=4, recompute=True, bucket_bytes=2**15), ("--bucket-mb", str(1 / 32))),
    ],
    ids=["tp-pp", "tp-pp-sp-recompute", "pp-dp-interleaved", "tp-dp-buckets-recompute"],
)
def test_3d_step_is_as_the_formula_says(tmp_path: Path, layout: Layout, flags: tuple[str, ...]) -> None:
    flags += ("--tp", str(layout.tp), "--pp", str(layout.pp), "--micro-batch", str(layout.micro_batch))
    if layout.sequence_parallel:
        flags += ("--sequence-parallel",)
    if layout.recompute:
        flags += ("--recompute", "full")
    for index, rank in enumerate(observe(tmp_path, 4, "gpt_3d.py", "--seq-len", "16", *flags)):
        pp_rank = index // (layout.tp * layout.dp)
        for step in (1, 2):
            expected = plain(formulas.rank_step_calls(TINY, layout, pp_rank=pp_rank, step=step))
            assert rank[step - 1]["calls"] == expected
            assert rank[step - 1]["flops"] == formulas.rank_step_flops(TINY, layout, pp_rank=pp_rank)
        assert rank[0]["parameters"] == formulas.rank_parameters(TINY, layout, pp_rank=pp_rank)


@pytest.mark.slow
def test_pipeline_step_is_as_the_formula_says(tmp_path: Path) -> None:
    layout = Layout(pp=2, num_micro=8, element_bytes=4, recompute=True)
    ranks = observe(tmp_path, 2, "gpt_pp.py", "--seq-len", "16", "--recompute", "full")
    for pp_rank, rank in enumerate(ranks):
        for step in (1, 2):
            assert rank[step - 1]["calls"] == plain(formulas.pipeline_calls(TINY, layout, pp_rank=pp_rank, step=step))
            flops = formulas.rank_step_flops(TINY, layout, pp_rank=pp_rank, reentrant=False)
            assert rank[step - 1]["flops"] == flops
