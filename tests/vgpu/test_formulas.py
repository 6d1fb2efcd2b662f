"""Captured examples against closed formulas: FLOPs and the bytes of every collective, of every rank, step by step.

The formulas are those of tests/examples/formulas.py, which tests/examples/test_formulas.py holds against real runs of
the same scripts on CPUs, and the published one of Narayanan et al. 2021.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest
from tests.examples import formulas
from tests.examples.formulas import Call, Calls, Layout
from tests.vgpu.capturing import capture

from sandtable.trace import RankView, Trace, flops, summarise_trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A GPT's shape."""

    num_layers: int
    hidden_size: int
    vocab_size: int
    seq_len: int


TINY = Shape(num_layers=4, hidden_size=64, vocab_size=512, seq_len=16)  # --size tiny --seq-len 16
GPT_175B = Shape(num_layers=96, hidden_size=12288, vocab_size=51200, seq_len=2048)

ONE_AXIS = {"world": "dp", "mesh_dp": "dp"}
PIPELINE = {"world": "pp"}
MESH = {"mesh_pp": "pp", "mesh_dp": "dp", "mesh_tp": "tp"}


def step_flops(view: RankView, step: int) -> int:
    """FLOPs of one step (from 1) of a rank."""
    return sum(flops(operator.signature) for operator in view.operators(view.step_slices()[step - 1]))


def step_calls(view: RankView, step: int, axes: Mapping[str, str]) -> Calls:
    """Calls of one step (from 1) of a rank; `axes` tells the axis of a group by its name."""
    return Counter(
        Call(call.op, axes[call.group.name], call.bytes_in, call.bytes_out)
        for call in view.collectives(view.step_slices()[step - 1])
    )


def check(
    trace: Trace, axes: Mapping[str, str], calls: Callable[[int, int], Calls], work: Callable[[int], int]
) -> None:
    """Every step of every rank makes `calls(rank, step)` and `work(rank)` FLOPs, exactly."""
    assert trace.num_steps >= 2
    for rank in range(trace.world_size):
        view = trace.rank(rank)
        for step in range(1, trace.num_steps + 1):
            assert step_calls(view, step, axes) == calls(rank, step), f"rank {rank} step {step}"
            assert step_flops(view, step) == work(rank), f"rank {rank} step {step}"


@pytest.mark.parametrize("amp", ["none", "bfloat16"])
def test_ddp_gpt(amp: str) -> None:
    flags = ("--seq-len", 16, "--bucket-mb", 0.1, "--accumulate", 2, "--recompute", "full", "--amp", amp)
    gradients = formulas.gpt_gradients_in_order(TINY, amp=amp != "none")

    def calls(rank: int, step: int) -> Calls:
        expected = formulas.ddp_step_calls(gradients, step=step, bucket_bytes=0.1 * 2**20)
        if step == 1:  # DDP's constructor: how many parameters, their shapes and strides (int64), rank 0's values
            expected[Call("all_gather", "dp", 8, 4 * 8)] += 1
            expected[Call("broadcast", "dp", NUM_DIMS * 2 * 8, NUM_DIMS * 2 * 8)] += 1
            size = 4 * formulas.gpt_parameters(TINY)
            expected[Call("broadcast", "dp", size, size)] += 1
        return expected

    work = formulas.gpt_step_flops(TINY, tokens=2 * 2 * 16, recompute=True)
    check(capture("gpt_ddp.py", *flags, world_size=4, num_steps=3), ONE_AXIS, calls, lambda rank: work)


NUM_DIMS = sum(map(len, formulas.block_parameter_shapes(64) * 4)) + 2 * 3 + 2
"""Dims of all parameters of the tiny GPT: blocks, two embeddings and the head, the last LayerNorm."""


def test_ddp_resnet() -> None:
    layers = formulas.resnet_convolutions(counts=(2, 2, 2, 2), is_bottleneck=False, width=8, image_size=40)
    num_parameters = formulas.resnet_parameters(layers, num_classes=10)
    expected = formulas.ddp_step_calls(
        [num_parameters], step=3, bucket_bytes=1e9, buffers=formulas.resnet_buffers(layers)
    )
    flags = ("--depth", 18, "--image-size", 40, "--batch", 4, "--bucket-mb", 1000)
    view = capture("resnet_ddp.py", *flags, world_size=4, num_steps=3).rank(3)
    assert step_calls(view, 3, ONE_AXIS) == expected
    assert step_flops(view, 3) == formulas.resnet_step_flops(layers, batch=4, num_classes=10)


@pytest.mark.slow
@pytest.mark.parametrize(("reshard", "num_micro", "num_ranks"), [(True, 1, 3), (False, 2, 4)])
def test_fsdp2(reshard: bool, num_micro: int, num_ranks: int) -> None:
    expected = formulas.fsdp2_step_calls(
        TINY, ranks=num_ranks, param_bytes=2, reduce_bytes=4, num_micro=num_micro, reshard=reshard
    )
    work = formulas.gpt_step_flops(TINY, tokens=2 * 16 * num_micro)
    flags = ("--seq-len", 16, "--reshard", str(reshard).lower(), "--accumulate", num_micro)
    trace = capture("gpt_fsdp2.py", *flags, world_size=num_ranks)
    check(trace, ONE_AXIS, lambda rank, step: expected, lambda rank: work)


@pytest.mark.slow
def test_tensor_and_sequence_parallel_of_dtensors() -> None:
    expected = formulas.dtensor_tp_step_calls(TINY, batch=3, tp=2, dp=2, element_bytes=4, recompute=True)
    work = formulas.dtensor_tp_flops(TINY, tokens=48, tp=2, recompute=True)
    flags = ("--seq-len", 16, "--tp", 2, "--micro-batch", 3, "--recompute", "full")
    trace = capture("gpt_tp.py", *flags, world_size=4)
    check(trace, MESH, lambda rank, step: expected, lambda rank: work)


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "num_ranks"), [("gpipe", 4), ("1f1b", 4), ("interleaved", 2)])
def test_pipeline(schedule: str, num_ranks: int) -> None:
    layout = Layout(pp=num_ranks, num_micro=8, element_bytes=4, virtual_stages=2 if schedule == "interleaved" else 1)
    trace = capture("gpt_pp.py", "--seq-len", 16, "--schedule", schedule, world_size=num_ranks)
    check(
        trace,
        PIPELINE,
        lambda rank, step: formulas.pipeline_calls(TINY, layout, pp_rank=rank, step=step),
        lambda rank: formulas.rank_step_flops(TINY, layout, pp_rank=rank),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "flags"),
    [
        (Layout(tp=2, pp=2, dp=2, num_micro=4), ()),
        (Layout(tp=2, pp=4, num_micro=4, micro_batch=2, sequence_parallel=True, recompute=True), ()),
        (Layout(tp=1, pp=2, dp=4, num_micro=2, virtual_stages=2), ("--schedule", "interleaved")),
        (Layout(tp=4, dp=2, num_micro=4, recompute=True, bucket_bytes=2**15), ("--bucket-mb", str(1 / 32))),
    ],
    ids=["tp-pp-dp", "tp-pp-sp-recompute", "pp-dp-interleaved", "tp-dp-buckets-recompute"],
)
def test_3d(layout: Layout, flags: tuple[str, ...]) -> None:
    flags += ("--tp", str(layout.tp), "--pp", str(layout.pp), "--micro-batch", str(layout.micro_batch))
    flags += ("--sequence-parallel",) if layout.sequence_parallel else ()
    flags += ("--recompute", "full") if layout.recompute else ()
    stage_size = layout.tp * layout.dp
    trace = capture("gpt_3d.py", "--seq-len", 16, *flags, world_size=8)
    check(
        trace,
        MESH,
        lambda rank, step: formulas.rank_step_calls(TINY, layout, pp_rank=rank // stage_size, step=step),
        lambda rank: formulas.rank_step_flops(TINY, layout, pp_rank=rank // stage_size),
    )
    for rank in range(trace.world_size):
        for call in trace.rank(rank).collectives():
            assert call.group.ranks == mesh_neighbours(rank, layout, MESH.get(call.group.name, "world"))


def mesh_neighbours(rank: int, layout: Layout, axis: str) -> tuple[int, ...]:
    """The ranks of a pp x dp x tp block on a line with `rank`."""
    strides = {"pp": layout.dp * layout.tp, "dp": layout.tp, "tp": 1, "world": 1}
    sizes = {"pp": layout.pp, "dp": layout.dp, "tp": layout.tp, "world": layout.pp * layout.dp * layout.tp}
    stride, size = strides[axis], sizes[axis]
    first = rank - rank // stride % size * stride
    return tuple(range(first, first + stride * size, stride))


@pytest.mark.slow
@pytest.mark.parametrize(("recompute", "per_token"), [("none", 72), ("full", 96)])
def test_flops_of_the_175b_gpt_are_the_published_ones(recompute: str, per_token: int) -> None:
    """96 B s L h^2 (1 + s / 6h + V / 16Lh) with full recomputation, arXiv:2104.04473; without it 72, and V / 12Lh.

    Theirs counts attention's backward as 4 products, ours (flash attention) as 5.
    """
    shape, batch = GPT_175B, 16
    h, seq, layers = shape.hidden_size, shape.seq_len, shape.num_layers
    head = shape.vocab_size / (per_token / 6 * layers * h)
    published = per_token * batch * seq * layers * h**2 * (1 + seq / (6 * h) + head)
    flags = ("--size", "175b", "--tp", 8, "--pp", 8, "--global-batch", batch, "--recompute", recompute)
    summary = summarise_trace(capture("gpt_3d.py", *flags, world_size=128, num_steps=1))
    assert summary.flops_per_step == pytest.approx(published, rel=0.01)
    layout = Layout(tp=8, pp=8, dp=2, num_micro=batch // 2, recompute=recompute == "full")
    ranks = [formulas.rank_step_flops(shape, layout, pp_rank=stage) for stage in range(layout.pp)]
    assert summary.flops_per_step == sum(ranks) * layout.tp * layout.dp
