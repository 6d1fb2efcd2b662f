"""`sandtable check` as a user types it: what it prints, its exit codes, and what silences findings."""

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from unittest import mock

import pytest
from tests.vgpu.virtual import on_shared_launcher

from sandtable import load
from sandtable.check import RULES, rule_pages
from sandtable.cli import main
from sandtable.findings import Evidence, Finding, Severity

TRAIN = """
import os
import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
torch.manual_seed(0)
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
for _ in range(10):
    loss = model(torch.rand(8, 64, device="cuda")).sum()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
    optimizer.step()
    optimizer.zero_grad()
"""
LATE = TRAIN.replace("for _", "if rank == 0:\n    dist.barrier()  # sandtable: ignore\nfor _", 1)
MISTAKE_LINE = 15


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def sandtable(tmp_path, monkeypatch):
    """Call the command line in a directory of its own, with the launcher that all tests share."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")

    def call(*words: str, script: str = TRAIN) -> Done:
        (tmp_path / "train.py").write_text(dedent(script))
        out, err, code = io.StringIO(), io.StringIO(), 0
        argv = mock.patch.object(sys, "argv", ["sandtable", *words])
        with redirect_stdout(out), redirect_stderr(err), argv, on_shared_launcher():
            try:
                main()
            except SystemExit as left:
                code = int(left.code or 0)
        return Done(code, out.getvalue(), err.getvalue())

    return call


@pytest.fixture
def mistake(monkeypatch):
    """Add a rule that accuses a line of the script, as severely as is asked for."""

    def add(severity: Severity) -> None:
        def rule(trace, timeline):
            place = next(event.place for event in trace.observations[0].events if event.place.line == MISTAKE_LINE)
            evidence = tuple(
                Evidence(ranks=(rank,), text="does it", file=place.file, line=place.line) for rank in (0, 1)
            )
            yield Finding(
                rule="deadlock-cycle",
                severity=severity,
                message="it must not",
                ranks=(0, 1),
                evidence=evidence,
                remedy="do",
            )

        monkeypatch.setitem(RULES, "deadlock-cycle", rule)

    return add


def test_a_script_without_mistakes_passes(sandtable) -> None:
    done = sandtable("check", "--nproc-per-node", "2", "train.py")
    assert done.code == 0, done.err
    assert done.out.split("\n")[-2] == "no mistakes found in 3 steps of 2 ranks"


def test_a_script_without_steps_passes_and_is_an_error_where_its_time_is_wanted(sandtable) -> None:
    calls = TRAIN.partition("torch.manual_seed(0)")[0] + "dist.all_reduce(torch.ones(4, device='cuda'))\n"
    checked = sandtable("check", "--nproc-per-node", "2", "train.py", script=calls)
    assert checked.code == 0, checked.err
    assert "note no-steps" in checked.out
    assert load("sandtable-out").error is None
    ran = sandtable("run", "--nproc-per-node", "2", "train.py", script=calls)
    assert ran.code == 1
    assert "error no-steps" in ran.err


@pytest.mark.parametrize(
    ("severity", "fail_on", "code"),
    [
        (Severity.ERROR, "", 1),
        (Severity.WARNING, "", 0),
        (Severity.WARNING, "warning", 1),
        (Severity.NOTE, "warning", 0),
        (Severity.ERROR, "never", 0),
    ],
)
def test_the_severity_decides_the_exit_code(sandtable, mistake, severity, fail_on, code) -> None:
    mistake(severity)
    options = ("--fail-on", fail_on) if fail_on else ()
    done = sandtable("check", *options, "--nproc-per-node", "2", "train.py")
    assert done.code == code
    assert f"{severity} deadlock" in done.out
    assert f"train.py:{MISTAKE_LINE}" in done.out
    verdict = "no mistakes found" if severity is Severity.NOTE else f"1 {severity}"
    assert f"{verdict} in 3 steps of 2 ranks" in done.out


def test_a_run_fails_for_findings_only_where_the_user_wants_it(sandtable, mistake) -> None:
    mistake(Severity.ERROR)
    assert sandtable("run", "--nproc-per-node", "2", "train.py").code == 0
    assert sandtable("run", "--fail-on", "error", "--nproc-per-node", "2", "train.py").code == 1


def test_a_rule_or_a_comment_silences_a_finding_which_is_counted(sandtable, mistake) -> None:
    mistake(Severity.ERROR)
    done = sandtable("check", "--ignore", "deadlock-cycle", "--nproc-per-node", "2", "train.py")
    assert (done.code, "; 1 silenced" in done.out, "error deadlock" in done.out) == (0, True, False)
    lines = TRAIN.split("\n")
    lines[MISTAKE_LINE - 1] += "  # sandtable: ignore[deadlock-cycle] on purpose"
    done = sandtable("check", "--nproc-per-node", "2", "train.py", script="\n".join(lines))
    assert (done.code, "; 1 silenced" in done.out) == (0, True)
    saved = json.loads(Path("sandtable-out/summary.json").read_text())
    assert [finding["rule"] for finding in saved["silenced"]] == ["deadlock-cycle"]
    assert [finding.rule for finding in load("sandtable-out").silenced] == ["deadlock-cycle"]


def test_what_ends_a_run_cannot_be_silenced(sandtable) -> None:
    done = sandtable("check", "--ignore", "collective-mismatch", "--nproc-per-node", "2", "train.py", script=LATE)
    assert done.code == 1
    assert "error collective-mismatch" in done.out


def test_a_failing_script_prints_its_traceback_and_the_finding(sandtable) -> None:
    done = sandtable("check", "--nproc-per-node", "2", "train.py", script=TRAIN + "raise ValueError('no')\n")
    assert done.code == 0, "three steps come before the end of the script"
    done = sandtable("check", "--nproc-per-node", "2", "train.py", script="raise ValueError('no')\n")
    assert done.code == 1
    assert "ValueError: no" in done.err
    assert "error script-error" in done.out
    assert "1 error in 0 steps of 2 ranks" in done.out
    assert sandtable("check", "--fail-on", "never", "train.py", script="raise ValueError('no')\n").code == 0


def test_launch_commands_are_checked_too(sandtable) -> None:
    done = sandtable("check", "--", "torchrun", "--nproc-per-node", "2", "train.py")
    assert done.code == 0, done.err
    assert "3 steps of 2 ranks" in done.out


def test_no_check_turns_observation_and_rules_off(sandtable, mistake) -> None:
    mistake(Severity.ERROR)
    done = sandtable("run", "--no-check", "--nproc-per-node", "2", "train.py")
    assert done.code == 0, done.err
    run = load("sandtable-out")
    assert (run.findings, dict(run.trace.observations), run.inputs.checks) == ((), {}, False)


def test_no_check_still_says_why_there_is_no_step_time(sandtable) -> None:
    done = sandtable("run", "--no-check", "--nproc-per-node", "2", "train.py", script="import torch\n")
    assert done.code == 1
    assert "error no-steps" in done.err


def test_rules_are_listed_and_explained(sandtable) -> None:
    done = sandtable("check", "--rules")
    assert [line.split()[0] for line in done.out.splitlines()] == list(rule_pages())
    done = sandtable("check", "--explain", "deadlock-cycle")
    assert "When it is not a mistake" in done.out


def test_unknown_rules_and_missing_scripts_are_errors(sandtable) -> None:
    assert "did you mean deadlock" in sandtable("check", "--explain", "deadlocks").err
    assert "did you mean deadlock" in sandtable("check", "--ignore", "deadlocks", "train.py").err
    assert "needs a script" in sandtable("check", "--fail-on", "error").err
    assert sandtable("check", "--fail-on", "sometimes", "train.py").code == 2


def test_findings_are_written_as_sarif(sandtable, mistake) -> None:
    mistake(Severity.WARNING)
    assert sandtable("check", "--sarif", "out/findings.sarif", "--nproc-per-node", "2", "train.py").code == 0
    (run,) = json.loads(Path("out/findings.sarif").read_text())["runs"]
    (result,) = run["results"]
    place = result["locations"][0]["physicalLocation"]
    assert (result["ruleId"], result["level"]) == ("deadlock-cycle", "warning")
    assert (place["artifactLocation"]["uri"], place["region"]) == ("train.py", {"startLine": MISTAKE_LINE})
