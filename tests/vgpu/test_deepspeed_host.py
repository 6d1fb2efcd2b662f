"""DeepSpeed's kernels for the host leave records of their work, and compute nothing."""

import textwrap
from pathlib import Path

import pytest

from sandtable import LaunchOptions, Rehearsal, rehearse

HEAD = """
import os, sandtable, torch
from deepspeed.ops.op_builder.builder import OpBuilder

torch.ones(8, device="cuda").sum()
tensors = [torch.zeros(1 << 20) for _ in range(4)]
"""
BUILDER = """
class OpBuilder:
    def __init__(self, name):
        self.name = name

    def load(self, verbose=True):
        raise AssertionError("this would start a compiler")
"""


@pytest.fixture
def run(tmp_path: Path):
    """Return a function that rehearses a script beside a package that looks like DeepSpeed."""
    package = tmp_path / "deepspeed" / "ops" / "op_builder"
    package.mkdir(parents=True)
    (package / "builder.py").write_text(BUILDER)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").write_text("")

    def run(body: str) -> Rehearsal:
        script = tmp_path / "train.py"
        script.write_text(HEAD + textwrap.dedent(body) + "\ntorch.ones(8, device='cuda').sum()\nsandtable.step()\n")
        return rehearse(script, cluster="dgx-a100", steps=1, options=LaunchOptions(ranks_per_node=1))

    return run


def test_an_optimizer_on_the_host_is_timed_by_the_bytes_of_its_states(run):
    rehearsal = run(
        """
        adam = OpBuilder("cpu_adam").load()
        adam.create_adam(0, 1e-3, 0.9, 0.99, 1e-8, 0.0, True, True)
        adam.adam_update(0, 1, 1e-3, 0.9, 0.99, 1e-8, 0.0, True, *tensors)
        OpBuilder("cpu_lion").load().lion_update(0, 1, 1e-3, 0.9, 0.99, 0.0, *tensors[:3])
        OpBuilder("cpu_adagrad").load().adagrad_update(0, 1, 1e-3, 1e-8, 0.0, *tensors[:3])
        """
    )
    assert rehearsal.error is None
    work = {signature.op: signature.work for signature in rehearsal.trace.signatures if signature.work}
    size = 4 << 20
    assert (work["deepspeed::cpu_adam"].bytes_read, work["deepspeed::cpu_adam"].bytes_written) == (4 * size, 3 * size)
    assert (work["deepspeed::cpu_lion"].bytes_read, work["deepspeed::cpu_lion"].bytes_written) == (3 * size, 2 * size)
    assert work["deepspeed::cpu_adagrad"].place == "host"
    assert rehearsal.timeline.step_ns > 7 * size * 1e9 / 409.6e9
    assert rehearsal.summary.memory[0].use.host_bytes == 4 * size


def test_files_have_their_size_and_take_the_time_of_the_disk(run, tmp_path):
    rehearsal = run(
        f"""
        handle = OpBuilder("async_io").load().aio_handle(1 << 20, 32, False, True, 2)
        name = {str(tmp_path / "states.swp")!r}
        assert handle.async_pwrite(tensors[0], name) == 0
        assert handle.sync_pread(tensors[1], name) == 2, "what was under way, and this one"
        assert os.path.getsize(name) == 4 << 20 and os.stat(name).st_blocks == 0
        """
    )
    assert rehearsal.error is None
    work = [signature.work for signature in rehearsal.trace.signatures if signature.work]
    assert sorted((each.bytes_read, each.bytes_written) for each in work) == [(0, 4 << 20), (4 << 20, 0)]
    assert rehearsal.timeline.step_ns > (4 << 20) * 1e9 * (1 / 55e9 + 1 / 33e9)
