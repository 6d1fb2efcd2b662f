"""Workers killed, stopped and cut off: training ends as it should, or with an error in the time it states."""

import contextlib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.lab.lab_state import needs_lab
from tests.torchrun import Torchrun, torchrun

from sandtable.lab import Lab, LabPlan

_EXAMPLES = Path(__file__).parents[2] / "examples"
_BEGINS = re.compile(r"rank (\d): process (\d+) begins at step (\d+)")
_CUT_S = 5.0


class Job:
    """torchrun on this machine, its lines read as they come."""

    def __init__(self, run: Torchrun) -> None:
        self._run = run

    @property
    def lines(self) -> list[str]:
        return [line for kind in ("out", "err") for line in self._run.said(kind).splitlines()]

    def wait_for(self, is_so: Callable[[], bool], *, seconds: float = 300.0) -> None:
        deadline = time.monotonic() + seconds
        while not is_so():
            assert time.monotonic() < deadline, self.lines[-20:]
            assert self._run.is_running, self.lines[-20:]
            time.sleep(0.02)

    def begins(self) -> list[tuple[int, int, int]]:
        """Return (rank, process, step) of every start of a rank."""
        found = [_BEGINS.search(line) for line in self.lines]
        return [tuple(map(int, match.groups())) for match in found if match]  # type: ignore[misc]

    def end(self, *, seconds: float = 300.0) -> int:
        return self._run.end(seconds)


@contextlib.contextmanager
def job(ranks: int, *options: str, restarts: int = 0) -> Iterator[Job]:
    environment = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    script = _EXAMPLES / "local_sgd.py"
    with Torchrun(ranks, script, *options, max_restarts=restarts, environment=environment) as run:
        yield Job(run)


def outcomes(lines: list[str]) -> list[str]:
    """Return accuracy and weights of all ranks, as printed at the end."""
    found = [re.search(r"rank (\d): accuracy (\S+) after .* weights (\S+)", line) for line in lines]
    return sorted(" ".join(match.groups()) for match in found if match)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [["--period", "4"], ["--period", "3", "--exchange", "gossip", "--compression", "threshold"]],
    ids=["all-reduce", "gossip"],
)
def test_job_goes_on_from_its_last_checkpoint_when_a_worker_is_killed(options, tmp_path):
    checkpoints = tmp_path / "checkpoints"
    settings = [*options, "--steps", "160", "--every", "20"]
    with job(3, *settings) as undisturbed:
        assert undisturbed.end() == 0
    with job(3, *settings, "--checkpoints", str(checkpoints), restarts=1) as disturbed:
        disturbed.wait_for(lambda: any(checkpoints.glob("step-*/.metadata")))
        victim = next(process for rank, process, _ in disturbed.begins() if rank == 1)
        os.kill(victim, signal.SIGKILL)
        assert disturbed.end() == 0, disturbed.lines[-30:]
    again = [step for _, process, step in disturbed.begins()[3:]]
    assert len(again) == 3
    assert again[0] >= 20
    assert outcomes(disturbed.lines) == outcomes(undisturbed.lines)
    assert len(outcomes(undisturbed.lines)) == 3
    assert len(list(checkpoints.glob("step-*"))) == 2


@pytest.mark.slow
def test_worker_that_hangs_is_an_error_within_the_stated_time():
    with job(2, "--steps", "100000", "--period", "1", "--timeout", "4") as running:
        running.wait_for(lambda: len(running.begins()) == 2)
        victim = next(process for rank, process, _ in running.begins() if rank == 1)
        os.kill(victim, signal.SIGSTOP)
        start = time.monotonic()
        try:
            running.wait_for(lambda: any("imed out" in line for line in running.lines), seconds=60)
            assert time.monotonic() - start < 4 + 5
        finally:
            os.kill(victim, signal.SIGKILL)
        assert running.end() != 0


@needs_lab
@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["local_sgd.py", "--period", "1", "--steps", "24"],
        ["local_sgd.py", "--period", "1", "--steps", "24", "--exchange", "gossip"],
        ["parameter_server.py", "--sync", "bulk", "--shards", "1", "--steps", "24"],
    ],
    ids=["all-reduce", "gossip", "server"],
)
def test_link_that_is_cut_for_five_seconds_only_costs_time(command):
    undisturbed = torchrun(3, _EXAMPLES / command[0], *command[1:])
    assert undisturbed.returncode == 0, undisturbed.stderr[-4000:]
    with Lab(LabPlan.uniform(3, bandwidth_bytes_per_s=1e6)) as lab:
        disturbed, seconds_after_cut = run_with_cut(lab, command)
    assert accuracies(disturbed) == accuracies(undisturbed.stdout.splitlines())
    # The peers find out by sending again, at intervals that double: 6.2 s after the first loss at the latest.
    assert 0 < seconds_after_cut < 30


def run_with_cut(lab: Lab, command: list[str]) -> tuple[list[str], float]:
    """Cut the second host's cable during training; return the lines, and the time from its repair to the first end."""
    lines: list[str] = []
    ends: list[float] = []
    repairs: list[float] = []

    def cut() -> None:
        time.sleep(1.0)
        with lab.cut(1):
            time.sleep(_CUT_S)
        repairs.append(time.monotonic())

    cutter = threading.Thread(target=cut)

    def show(host: str, line: str) -> None:
        lines.append(line)
        if "accuracy" in line:
            ends.append(time.monotonic())
        if "begins" in line and not cutter.ident:
            cutter.start()

    # One rank per host. torchrun would import torch once more on each.
    rank = 'RANK=$NODE_RANK LOCAL_RANK=0 WORLD_SIZE=$NNODES exec "$0" "$@"'
    words = ["sh", "-c", rank, sys.executable, str(_EXAMPLES / command[0]), *command[1:]]
    result = lab.run(words, show=show, timeout_s=300)
    assert result.exit_code == 0, lines[-20:]
    cutter.join()
    return lines, ends[0] - repairs[0]


def accuracies(lines: list[str]) -> list[str]:
    found = [re.search(r"((rank|worker) \d): accuracy (\S+)", line) for line in lines]
    return sorted(f"{match[1]} {match[3]}" for match in found if match)
