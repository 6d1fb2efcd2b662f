"""Captures that fail leave what their ranks recorded: a partial trace, and findings with script lines."""

import os
import time

import numpy as np
import pytest
from tests.vgpu.test_launcher import _importable, job, shared_launcher, write
from tests.vgpu.virtual import on_shared_launcher

from sandtable.cluster import load
from sandtable.errors import MismatchError, ScriptError
from sandtable.findings import Evidence
from sandtable.trace import RankProgress, Trace, progress_of, summarise_trace
from sandtable.vgpu import CaptureResult, Job
from sandtable.vgpu.failures import script_prefixes

__all__ = ["_importable", "write"]

GPU_HEAD = """\
import os
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    model(torch.rand(8, 64, device="cuda")).sum().backward()
    optimizer.step()
"""


def capture(script: str, *, world: int = 2, **fields) -> CaptureResult:
    return shared_launcher().capture(job(script, world=world, **{"ranks": "all", **fields}))


def reasons(trace: Trace) -> dict[int, str]:
    return {rank: trace.rank(rank).rank_class.records.stop_reason for rank in trace.captured_ranks}


@pytest.fixture
def on_gpus(tmp_path):
    """Captures the steps of a script on two virtual GPUs."""

    def capture(body: str) -> CaptureResult:
        path = tmp_path / "train.py"
        path.write_text(GPU_HEAD + body)
        cluster = load("dgx-a100", nodes=1)
        two = Job(script=str(path), world_size=2, nproc_per_node=2, cluster=cluster, num_steps=9, ranks="all")
        with on_shared_launcher() as launcher:
            return launcher.capture(two)

    return capture


# ---- on the fake runtime ----


def test_a_capture_that_succeeds_has_a_trace_and_no_error(write):
    result = capture(write("dist.init(); dist.do(1)"))
    assert result.error is None
    assert reasons(result.trace) == {0: "script ended", 1: "script ended"}


def test_ranks_that_wait_are_stopped_when_another_fails(write):
    result = capture(write("dist.init(); dist.do(5)\nif rank == 1: raise KeyError('x')\ndist.gather(0, b'')"), world=4)
    assert isinstance(result.error, ScriptError)
    assert result.error.rank == 1
    assert reasons(result.trace) == {1: "failed"} | dict.fromkeys((0, 2, 3), "another rank failed")


def test_ranks_that_compute_are_stopped_when_another_fails(write):
    start = time.monotonic()
    result = capture(write("dist.init(); dist.do(5)\nif rank == 1: 1 / 0\nwhile True: time.sleep(0.01)"))
    assert reasons(result.trace) == {0: "another rank failed", 1: "failed"}
    assert time.monotonic() - start < 10


def test_a_rank_that_does_not_stop_is_killed_and_left_out(write):
    deaf = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: time.sleep(0.01)"
    result = capture(write(f"dist.init()\nif rank == 1: 1 / 0\n{deaf}"))
    assert reasons(result.trace) == {1: "failed"}


def test_a_deadlock_leaves_the_records_of_all_ranks(write):
    script = write("""
    dist.init()
    dist.do(rank)
    pairs = [dist.new_group((0, 1), "first"), dist.new_group((0, 1), "second")]
    dist.gather(pairs[rank], b"")
    """)
    result = capture(script)
    assert isinstance(result.error, MismatchError)
    assert result.error.findings[0].rule == "deadlock-cycle"
    assert reasons(result.trace) == {0: "deadlock", 1: "deadlock"}


def test_a_mismatch_leaves_the_records_of_all_ranks(write):
    result = capture(write("dist.init(); dist.do(rank)\ndist.gather(0, b'', op=['broadcast', 'all_gather'][rank])"))
    assert isinstance(result.error, MismatchError)
    assert result.error.findings[0].rule == "collective-mismatch"
    assert reasons(result.trace) == {0: "collective mismatch", 1: "collective mismatch"}


def test_ranks_that_wait_alike_share_one_piece_of_evidence(write):
    script = write("dist.init(); gone = dist.new_group((0, 1, 2, 3), 'all')\nif rank < 3: dist.gather(gone, b'')")
    result = capture(script, world=4)
    assert isinstance(result.error, MismatchError)
    finding = result.error.findings[0]
    assert [evidence.ranks for evidence in finding.evidence] == [(0, 1, 2)]
    assert finding.ranks == (0, 1, 2, 3)


def test_a_partial_trace_covers_the_captured_ranks_alone_and_can_be_saved(write, tmp_path):
    result = capture(write("dist.init(); dist.do(rank)\nif rank == 0: sys.exit(4)"), world=16, ranks="auto")
    assert isinstance(result.error, ScriptError)
    assert result.error.exit_code == 4
    assert result.trace.captured_ranks == (0,)
    assert [found.ranks for found in result.trace.classes] == [(0,)]
    result.trace.save(tmp_path)
    assert progress_of(Trace.load(tmp_path)) == progress_of(result.trace)
    assert summarise_trace(Trace.load(tmp_path)).classes[0].stop_reason == "failed"


def test_a_rank_that_vanishes_leaves_no_trace_of_its_own(write):
    result = capture(write("os._exit(3)"), world=1)
    assert result.trace.classes == ()
    assert isinstance(result.error, ScriptError)
    assert result.error.findings[0].evidence[0].text == "left with os._exit(3) or the like"


def test_the_finding_of_a_script_error_names_the_innermost_line_of_the_users_code(write):
    result = capture(write("import json\ndef parse():\n    json.loads('{')\nparse()"), world=1)
    assert isinstance(result.error, ScriptError)
    finding = result.error.findings[0]
    (evidence,) = finding.evidence
    assert finding.rule == "script-error"
    assert evidence.text.startswith("raised json.decoder.JSONDecodeError: Expecting property name")
    assert evidence.file.endswith("train.py")
    assert evidence.line == 6


# ---- on virtual GPUs ----


def test_how_far_ranks_got_before_a_deadlock(on_gpus):
    result = on_gpus("step()\nx = torch.ones(1, device='cuda')\ndist.recv(x, src=1 - rank)\n")
    assert isinstance(result.error, MismatchError)
    assert result.trace.captured_ranks == (0, 1)
    (progress,) = progress_of(result.trace)
    assert progress.num_operators > 0
    assert progress == RankProgress(
        rank=0,
        num_steps=1,
        num_operators=progress.num_operators,
        last_call="recv of 4 B from rank 1",
        file=progress.file,
        line=14,
        stop_reason="deadlock",
    )
    assert progress.file.endswith("train.py")
    assert "rank 0 waits for rank 1 in recv of 4 bytes float32 from rank 1" in str(result.error)


def test_a_script_error_after_two_steps(on_gpus):
    result = on_gpus("step()\nstep()\nif rank == 1:\n    model(torch.rand(8, 65, device='cuda'))\nstep()\n")
    assert isinstance(result.error, ScriptError)
    progress = {row.rank: row for row in progress_of(result.trace)}
    assert progress[1].num_steps == 2
    assert progress[1].stop_reason == "failed"
    assert (result.error.rank, result.error.findings[0].evidence[0].line) == (1, 15)


def test_running_out_of_memory_is_a_finding_with_the_lines_that_hold_it(on_gpus):
    result = on_gpus("step()\nheld = [torch.empty(2**30, device='cuda') for _ in range(100)]\n")
    assert isinstance(result.error, ScriptError)
    finding = result.error.findings[0]
    raised, held = finding.evidence[:2]
    assert finding.rule == "out-of-memory"
    assert finding.remedy.startswith("try smaller micro-batches")
    assert raised.text == "raised torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB"
    assert held == Evidence(ranks=finding.ranks, text="holds 76.00 GiB", file=raised.file, line=13)
    assert raised.line == 13
    assert progress_of(result.trace)[0].num_steps == 1


def test_lines_of_the_installed_package_that_is_run_are_the_users(tmp_path):
    command = tmp_path / "train"
    command.write_text("#!/usr/bin/python\nimport sys\nfrom numpy.testing import run\nsys.exit(run())\n")
    script = tmp_path / "train.py"
    script.write_text("import numpy\n")
    package = os.path.join(os.path.dirname(np.__file__), "")
    assert script_prefixes(str(command)) == [package]
    assert script_prefixes("numpy.testing") == [package]
    assert script_prefixes(f"{package}version.py") == [package]
    assert script_prefixes(str(script)) == []
    assert script_prefixes("torch.distributed.run") == []
