"""No example has a mistake that `sandtable check` finds, on its own or in what it is built on."""

import shlex
from pathlib import Path

import pytest
from tests.vgpu.virtual import on_shared_launcher

from sandtable import Launcher, LaunchOptions, rehearse_command
from sandtable.check import ABOUT_FIGURES
from sandtable.findings import Severity

EXAMPLES = Path(__file__).parents[2] / "examples"
COMMANDS = [
    "torchrun --nproc-per-node 5 distbelief.py",
    "torchrun --nproc-per-node 5 distbelief.py --method sandblaster",
    "torchrun --nproc-per-node 4 gpt_3d.py --tp 2 --pp 2",
    "torchrun --nproc-per-node 4 gpt_3d.py --tp 2 --sequence-parallel --bucket-mb 0.05",
    "torchrun --nproc-per-node 4 gpt_3d.py --tp 2 --pp 2 --schedule interleaved --recompute full",
    "accelerate launch --num_processes 2 --mixed_precision bf16 gpt_accelerate.py",
    "torchrun --nproc-per-node 2 gpt_ddp.py --accumulate 4 --amp bfloat16",
    "torchrun --nproc-per-node 4 gpt_ddp.py --amp float16",
    "deepspeed --num_gpus 2 gpt_deepspeed.py --zero 1",
    "deepspeed --num_gpus 2 gpt_deepspeed.py --zero 3",
    "torchrun --nproc-per-node 2 gpt_fsdp1.py --strategy full",
    "torchrun --nproc-per-node 2 gpt_fsdp2.py --param-dtype bfloat16",
    "torchrun --nproc-per-node 8 gpt_megatron.py --tp 2 --pp 2",
    "torchrun --nproc-per-node 4 gpt_pp.py --schedule 1f1b",
    "torchrun --nproc-per-node 4 gpt_tp.py --tp 2",
    "torchrun --nproc-per-node 4 local_sgd.py",
    "torchrun --nproc-per-node 4 local_sgd.py --exchange gossip --compression threshold --period 4",
    "torchrun --nproc-per-node 4 moe.py --experts 8 --top-k 2",
    "torchrun --nproc-per-node 4 parameter_server.py",
    "torchrun --nproc-per-node 4 parameter_server.py --sync stale --bound 4",
    "torchrun --nproc-per-node 3 pipeline.py",
    "torchrun --nproc-per-node 2 pipeline.py --schedule interleaved --stages 4",
    "torchrun --nproc-per-node 8 pipeline_gpt.py --pp 2 --tp 2",
    "torchrun --nproc-per-node 4 pipeline_gpt.py --pp 4 --schedule pipedream --steps 8",
    "torchrun --nproc-per-node 2 resnet_ddp.py --depth 18 --image-size 32",
    "torchrun --nproc-per-node 4 tensor_parallel_cnn.py --tp 2",
    "torchrun --nproc-per-node 4 tensor_parallel_gpt.py --tp 2",
    "torchrun --nproc-per-node 4 tensor_parallel_gpt.py --tp 4 --sequence-parallel",
]
ON_CPU = {command for command in COMMANDS if "local_sgd" in command or "sandblaster" in command}
PACKAGES = {"gpt_accelerate.py": "accelerate", "gpt_deepspeed.py": "deepspeed", "gpt_megatron.py": "megatron"}
PARTS_OF_OTHERS = {"gpt_model.py", "job.py", "tensor_parallel.py", "deepspeed_bloom.py"}
"""Modules that examples import, and one example with a test of its own."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def launcher():
    with on_shared_launcher() as shared:
        yield shared


@pytest.mark.parametrize("command", COMMANDS)
def test_an_example_has_no_mistakes(command: str, launcher: Launcher) -> None:
    words = shlex.split(command)
    place = next(place for place, word in enumerate(words) if word.endswith(".py"))
    if words[place] in PACKAGES:
        pytest.importorskip(PACKAGES[words[place]])
    words[place] = str(EXAMPLES / words[place])
    run = rehearse_command(words, options=LaunchOptions(launcher=launcher))
    mistakes = [finding for finding in run.findings if finding.severity is not Severity.NOTE]
    if command in ON_CPU:  # on purpose: what is said of such a run is that it cannot be timed
        mistakes = [finding for finding in mistakes if finding.rule not in ABOUT_FIGURES]
    assert not mistakes, "\n".join(map(str, mistakes))
    assert (run.error is None) == (command not in ON_CPU)


def test_every_example_is_checked() -> None:
    named = {word for command in COMMANDS for word in shlex.split(command) if word.endswith(".py")}
    assert {file.name for file in EXAMPLES.glob("*.py")} == named | PARTS_OF_OTHERS
