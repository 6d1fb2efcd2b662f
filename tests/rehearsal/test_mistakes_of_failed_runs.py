"""A run that fails still shows what else is wrong with it, and no rule can spoil it."""

import pytest
from tests.rehearsal.conftest import Rehearse

from sandtable import LaunchOptions, Rehearsal, load
from sandtable.check import RULES
from sandtable.check.inspect import RAISE_VARIABLE
from sandtable.errors import MismatchError, ScriptError
from sandtable.findings import Evidence, Finding, Severity

HEAD = """
import os
import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.rand(8, 64, device="cuda")).sum().backward()
optimizer.step()
"""
OPTIMIZER_LINE = 10
RAISES = HEAD + "if rank == 1:\n    raise ValueError('no')\ndist.barrier()\n"
MISMATCH = HEAD + "if rank == 1:\n    dist.barrier()\ndist.all_reduce(torch.ones(8, device='cuda'))\n"
DIES_EARLY = "import os\nos._exit(3)\n"


@pytest.fixture
def optimizer_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accuse every rank that made an optimizer."""

    def rule(trace, timeline):
        rows = tuple(
            Evidence(ranks=(rank,), text="makes it", file=event.place.file, line=event.place.line)
            for rank, observed in sorted(trace.observations.items())
            for event in observed.events
            if event.kind == "optimizer made"
        )
        if rows:
            yield Finding(rule="deadlock-cycle", severity=Severity.WARNING, message="no", ranks=(0,), evidence=rows)

    monkeypatch.setitem(RULES, "unit-test", rule)


def rules_of(run: Rehearsal) -> list[str]:
    return [finding.rule for finding in run.findings]


@pytest.mark.parametrize(
    ("text", "kind", "rule"),
    [(RAISES, ScriptError, "rank-raised"), (MISMATCH, MismatchError, "collective-mismatch")],
)
def test_mistakes_are_found_in_what_was_recorded(
    rehearse_text: Rehearse, optimizer_rule: None, text: str, kind: type[Exception], rule: str, tmp_path
) -> None:
    run = rehearse_text(text, out=tmp_path / "out", steps=5)
    assert isinstance(run.error, kind)
    assert rules_of(run) == [rule, "deadlock-cycle"]
    assert [row.ranks for row in run.findings[1].evidence] == [(0,), (1,)]
    assert {row.line for row in run.findings[1].evidence} == {OPTIMIZER_LINE}
    assert str(run.findings[1]) not in str(run.error), "the error is what ended the run"
    again = load(tmp_path / "out")
    assert rules_of(again) == [rule, "deadlock-cycle"]
    assert again.error is not None


def test_a_run_of_which_nothing_was_recorded_has_its_error_alone(rehearse_text: Rehearse) -> None:
    run = rehearse_text(DIES_EARLY)
    assert isinstance(run.error, ScriptError)
    assert rules_of(run) == ["script-error"]


def test_a_script_that_fails_before_it_imports_torch_has_its_error_alone(rehearse_text: Rehearse) -> None:
    run = rehearse_text("raise ValueError('no')\n")
    assert rules_of(run) == ["script-error"]


def test_a_rule_that_raises_is_a_note_and_in_tests_an_error(
    rehearse_text: Rehearse, optimizer_rule: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(trace, timeline):
        return [][1]

    monkeypatch.setitem(RULES, "broken", broken)
    with pytest.raises(IndexError):
        rehearse_text(HEAD)
    monkeypatch.delenv(RAISE_VARIABLE)
    run = rehearse_text(HEAD)
    assert rules_of(run)[0] == "deadlock-cycle", "the others are applied"
    (note,) = [finding for finding in run.findings if finding.rule == "rule-failed"]
    assert note.severity is Severity.NOTE
    assert note.message.startswith("the rule broken could not be applied: IndexError: list index out of range (")
    assert run.error is None


def test_a_capture_of_some_ranks_has_mistakes_and_no_error(
    rehearse_text: Rehearse, launcher, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    def rule(trace, timeline):
        yield Finding(rule="deadlock-cycle", severity=Severity.ERROR, message="no", ranks=(0,))

    monkeypatch.setitem(RULES, "unit-test", rule)
    options = LaunchOptions(ranks_per_node=2, ranks=(0,), launcher=launcher)
    run = rehearse_text(HEAD, options=options, out=tmp_path / "out", steps=1)
    assert rules_of(run) == ["deadlock-cycle", "ranks-not-captured"]
    assert run.error is None
    assert load(tmp_path / "out").error is None
