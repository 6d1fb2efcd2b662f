"""Runs whose steps differ, or that have none: what the figures, the terminal and the exit code say."""

from pathlib import Path

import pytest
from rich.console import Console
from tests.rehearsal.conftest import Rehearse
from typer import Exit

import sandtable
from sandtable import Launcher, LaunchOptions
from sandtable.cli.run import print_rehearsal
from sandtable.errors import FindingError, LaunchError
from sandtable.report import print_outcome

EVALUATES = """
import torch
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(100):
    model(torch.rand(8, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if number % 2 == 0:
        with torch.no_grad():
            for _ in range(50):
                model(torch.rand(8, 256, device="cuda"))
"""

PLAIN = EVALUATES.replace("number % 2 == 0", "False")
NEVER_STEPS = EVALUATES.replace("    optimizer.step()\n", "").replace("range(100)", "range(3)")
ITERATES = (
    EVALUATES.replace("for number in range(100):", "def iterate(number):")
    + "for number in range(100): iterate(number)\n"
)


@pytest.fixture
def alone(launcher: Launcher) -> LaunchOptions:
    return LaunchOptions(ranks_per_node=1, launcher=launcher)


def test_a_step_between_evaluations_is_described(rehearse_text: Rehearse, alone: LaunchOptions):
    plain = rehearse_text(PLAIN, options=alone, steps=3)
    run = rehearse_text(EVALUATES, options=alone, steps=3)
    assert run.step_seconds == plain.step_seconds
    timing = run.summary.require_timing()
    assert (timing.steps.described, timing.steps.slowest, timing.steps.num_timed) == (3, 2, 2)
    assert timing.steps.slowest_seconds > 5 * timing.steps.median_seconds
    assert timing.efficiency == plain.summary.require_timing().efficiency
    assert run.summary.capture.flops_per_step == plain.summary.capture.flops_per_step
    (finding,) = run.findings
    assert (finding.rule, finding.evidence[0].line) == ("unequal-steps", 12)


def test_the_terminal_shows_the_spread_where_steps_differ(rehearse_text: Rehearse, alone: LaunchOptions):
    console = Console(width=200)
    for text, is_shown in ((EVALUATES, True), (PLAIN, False)):
        run = rehearse_text(text, options=alone, steps=3)
        with console.capture() as printed:
            print_outcome(run.summary, console)
        assert ("per step (median of 2: " in printed.get()) == is_shown
        assert ("step 3 is described" in printed.get()) == is_shown


def test_a_run_without_a_step_has_an_error_and_no_step_time(
    rehearse_text: Rehearse, alone: LaunchOptions, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = rehearse_text(NEVER_STEPS, options=alone, steps=3, out=tmp_path / "out")
    assert (run.has_time, run.summary.timing, run.summary.is_failed) == (False, None, True)
    with pytest.raises(FindingError, match=r"0 of 3 steps.*3 backward passes ran; 1 optimizer was made"):
        _ = run.step_seconds
    with pytest.raises(Exit) as ended:
        print_rehearsal(run, Console(), out=tmp_path / "out")
    assert ended.value.exit_code == 1
    printed = capsys.readouterr()
    assert "per step" not in printed.out + printed.err
    again = sandtable.load(tmp_path / "out")
    assert str(again.error) == str(run.error)
    assert '"step_seconds": null' in (tmp_path / "out" / "summary.json").read_text()


def test_a_marker_ends_the_steps_of_a_run(rehearse_text: Rehearse, launcher: Launcher):
    marked = LaunchOptions(ranks_per_node=1, launcher=launcher, step_marker="__main__:iterate")
    run = rehearse_text(ITERATES, options=marked, steps=5)
    assert (run.trace.num_steps, run.summary.require_timing().steps.described) == (5, 4)
    unknown = LaunchOptions(ranks_per_node=1, launcher=launcher, step_marker="__main__:nobody")
    assert "the step marker __main__:nobody was never reached" in str(rehearse_text(ITERATES, options=unknown).error)


def test_a_warm_up_is_not_in_the_figures(rehearse_text: Rehearse, launcher: Launcher, tmp_path: Path):
    skipping = LaunchOptions(ranks_per_node=1, launcher=launcher, skip_steps=3)
    run = rehearse_text(PLAIN, options=skipping, steps=5, out=tmp_path / "out")
    assert (run.trace.num_steps, run.summary.require_timing().steps.num_timed) == (5, 2)
    assert sandtable.load(tmp_path / "out").summary.require_timing().steps.num_timed == 2
    with pytest.raises(LaunchError, match=r"skipped steps \(3\).*fewer than the steps to capture \(3\)"):
        rehearse_text(PLAIN, options=skipping, steps=3)


def test_a_marker_in_the_script_is_awaited(rehearse_text: Rehearse, alone: LaunchOptions):
    """Four optimizer steps per mark are more than the wanted number of steps, which must not end the capture."""
    text = PLAIN.replace("import torch", "import torch, sandtable") + "    if number % 4 == 3: sandtable.step()\n"
    run = rehearse_text(text, options=alone, steps=2)
    assert run.step_seconds == pytest.approx(4 * rehearse_text(PLAIN, options=alone).step_seconds, rel=0.02)
