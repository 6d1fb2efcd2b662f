"""The scripts behind the FSDP and CNN rows: real training on two processes, and the work a virtual GPU sees."""

import math
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from tests.torchrun import torchrun
from tests.vgpu.virtual import on_shared_launcher

from sandtable.cluster import load
from sandtable.trace import Kind, Phase, Trace
from sandtable.vgpu import Job, launch

SCRIPTS = Path(__file__).parents[2] / "validation" / "scripts"
FP32 = ("--param-dtype", "float32")


@cache
def losses(num_processes: int, script: str, *flags: str) -> tuple[float, ...]:
    """Train for real, with gloo, and return the losses that rank 0 printed."""
    done = torchrun(num_processes, SCRIPTS / script, *flags)
    assert done.returncode == 0, done.stderr[-4000:]
    values = tuple(float(loss) for loss in re.findall(r"^step \d+ loss (\S+)$", done.stdout, re.MULTILINE))
    assert values
    assert all(map(math.isfinite, values))
    return values


@cache
def capture(script: str, *flags: str) -> Trace:
    """Two ranks of a node on virtual GPUs, two steps."""
    job = Job(
        script=str(SCRIPTS / script),
        script_args=flags,
        world_size=2,
        nproc_per_node=2,
        cluster=load("dgx-a100"),
        num_steps=2,
    )
    with on_shared_launcher():
        return launch(job)


def counts(trace: Trace, *, phase: Phase | None = None) -> Counter[str]:
    """How often rank 0 issues each operator and collective in the last step."""
    view = trace.rank(0)
    step = view.step_slices()[-1]
    found = Counter(op.signature.op for op in view.operators(step) if phase is None or op.phase == phase)
    found.update(call.op for call in view.collectives(step) if phase is None)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("checkpoint", ["none", "op", "layer", "full"])
def test_sharded_llama_has_the_loss_of_one_process(checkpoint: str) -> None:
    flags = (*FP32, "--checkpoint", checkpoint)
    alone = losses(1, "llama_fsdp2.py", *FP32, "--local-batch", "4")
    assert losses(2, "llama_fsdp2.py", *flags, "--local-batch", "2") == pytest.approx(alone, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("--checkpoint",), ("--mixed-precision", "PURE")])
def test_sharded_mpt_has_the_loss_of_one_process(flags: tuple[str, ...]) -> None:
    alone = losses(1, "mpt_fsdp.py", *FP32, "--micro-batch", "8")
    shared = losses(2, "mpt_fsdp.py", *FP32, *flags, "--micro-batch", "2", "--num-micro-batches", "2")
    assert shared == pytest.approx(alone, abs=1e-4)


@pytest.mark.slow
def test_network_for_pictures_learns_on_two_processes() -> None:
    values = losses(2, "cnn_ddp.py", "--steps", "6")
    assert values[-1] < values[0]


def test_mpt_reduces_gradients_after_every_micro_batch() -> None:
    once = counts(capture("mpt_fsdp.py"))
    thrice = counts(capture("mpt_fsdp.py", "--num-micro-batches", "3"))
    assert once["reduce_scatter"] == 3  # two blocks and the rest
    assert thrice["reduce_scatter"] == 3 * once["reduce_scatter"]


def test_mpt_loss_is_one_kernel_each_way_and_metrics_are_two_more() -> None:
    seen = counts(capture("mpt_fsdp.py"))
    assert seen["validation::cross_entropy"] == seen["validation::cross_entropy_backward"] == 1
    assert seen["aten::_log_softmax"] == 2


def test_mpt_optimizer_reads_a_step_number_for_each_weight() -> None:
    view = capture("mpt_fsdp.py").rank(0)
    records, step = view.records, view.step_slices()[-1]
    waits = (records.kind[step] == Kind.HOST_SYNC) & (records.phase[step] == Phase.OPTIMIZER)
    assert waits.sum() == 2 * 6 + 3  # two blocks of four products and two norms; two embeddings and a norm


@pytest.mark.parametrize(
    ("checkpoint", "products", "attentions"),
    # Six of a layer's seven products feed another: nobody asks for the last. Of these `op` keeps q, v and gate, and the
    # attention; `layer` is about the second layer of the two.
    [("none", 0, 0), ("op", 2 * 3, 0), ("layer", 6, 1), ("full", 2 * 6, 2)],
)
def test_llama_works_out_again_what_it_did_not_keep(checkpoint: str, products: int, attentions: int) -> None:
    again = counts(capture("llama_fsdp2.py", "--checkpoint", checkpoint), phase=Phase.RECOMPUTE)
    assert again["aten::mm"] == products
    assert again["aten::_scaled_dot_product_flash_attention"] == attentions


@pytest.mark.parametrize("script", ["llama_fsdp2.py", "mpt_fsdp.py", "cnn_ddp.py"])
def test_both_ranks_do_the_same_work(script: str) -> None:
    assert len(capture(script).classes) == 1


def test_network_alone_does_not_average_gradients() -> None:
    job = Job(
        script=str(SCRIPTS / "cnn_ddp.py"),
        script_args=("--log-every", "100", "--steps", "100"),
        world_size=1,
        nproc_per_node=1,
        cluster=load("dgx1-p100"),
        num_steps=2,
    )
    with on_shared_launcher():
        trace = launch(job)
    assert counts(trace)["all_reduce"] == 0
