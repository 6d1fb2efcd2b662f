"""Findings and failed runs: on the terminal, on the page, and with the script lines they are about."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tests.report.conftest import MISMATCH, SCRIPT, SLOW_INPUT, Rehearsal
from tests.report.test_page import EVIL, Elements, data_of

from sandtable.findings import Evidence, Finding, Severity
from sandtable.report import Summary, print_failure, print_findings, print_outcome
from sandtable.report.findings import verdict_of
from sandtable.report.page import compare_page, run_page
from sandtable.report.source_lines import quote_lines


def printed(findings: list[Finding], width: int = 100) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as capture:
        print_findings(findings, console)
    return capture.get()


def outcome(summary: Summary, width: int = 100) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as capture:
        print_outcome(summary, console, files={"report": Path("out/report.html")})
    return capture.get()


def test_findings_are_printed_worst_first_with_lines_and_remedy() -> None:
    text = " ".join(printed([SLOW_INPUT, MISMATCH]).split())
    assert text.index("error collective-mismatch") < text.index("warning slow-input")
    assert re.search(r"rank 0 calls all_reduce of 4.00 MiB \S*gpt_3d.py:67", text)
    assert "/nowhere/train.py:3" in text
    assert "remedy call the same collective" in text


def test_long_evidence_is_cut_short() -> None:
    many = tuple(Evidence(ranks=(rank,), text="waits") for rank in range(20))
    text = printed([replace(MISMATCH, evidence=many)])
    assert "and 14 more" in text
    assert text.count("waits") == 6


def test_of_many_findings_of_one_rule_the_first_are_printed() -> None:
    text = printed([SLOW_INPUT] * 5 + [MISMATCH])
    assert text.count("warning slow-input") == 3
    assert "2 more warnings of slow-input: see the report" in text
    assert "see the report" not in printed([SLOW_INPUT] * 3)


def test_what_findings_say_is_not_taken_for_markup() -> None:
    assert "[red]x[/red]" in printed([replace(MISMATCH, message="[red]x[/red]", remedy="[bold]")])


def test_a_failed_run_prints_findings_and_how_far_ranks_got(failed: Summary) -> None:
    text = outcome(failed)
    assert "no step time" in text
    assert "collective-mismatch" in text
    assert re.search(r"^0-5 +0 +\d+ ", text, re.MULTILINE)
    assert "waits for" in text
    assert "report.html" in text
    assert max(map(len, text.splitlines())) <= 100


def test_print_failure_also_works_with_nothing_known(failed: Summary) -> None:
    console = Console(width=80, force_terminal=False)
    with console.capture() as capture:
        print_failure(replace(failed, findings=(), progress=()), console)
    assert "no step time" in capture.get()


def test_warnings_of_a_run_that_succeeds_are_printed(rehearsal: Rehearsal) -> None:
    assert "warning slow-input" in outcome(replace(rehearsal.summary, findings=(SLOW_INPUT,)))


def test_silenced_findings_are_counted(rehearsal: Rehearsal, failed: Summary) -> None:
    for summary in (rehearsal.summary, failed):
        text = outcome(replace(summary, silenced=(SLOW_INPUT, SLOW_INPUT)))
        assert "2 findings silenced: slow-input" in text
    assert "silenced" not in outcome(rehearsal.summary)


def test_the_verdict_counts_by_severity(rehearsal: Rehearsal) -> None:
    note = replace(SLOW_INPUT, severity=Severity.NOTE)

    def verdict(*findings: Finding, silenced: tuple[Finding, ...] = ()) -> str:
        return verdict_of(replace(rehearsal.summary, findings=findings, silenced=silenced))

    captured = len(rehearsal.summary.capture.captured_ranks)
    steps = rehearsal.summary.capture.num_steps
    where = f"in {steps} steps of 16 ranks, of which {captured} ran"
    assert verdict() == f"no mistakes found {where}"
    assert verdict(note) == f"no mistakes found {where}; 1 note"
    assert verdict(MISMATCH, MISMATCH, SLOW_INPUT, note) == f"2 errors, 1 warning, 1 note {where}"
    assert verdict(SLOW_INPUT, silenced=(note,)) == f"1 warning {where}; 1 silenced"


def test_the_page_of_a_failed_run_has_the_source_of_each_line_that_can_be_read(failed: Summary) -> None:
    data = data_of(run_page(failed, None))
    assert data["charts"] is None
    source = data["sources"][f"{SCRIPT}:67"]
    lines = Path(SCRIPT).read_text().split("\n")
    assert source["lines"] == lines[63:70]
    assert (source["first"], source["line"]) == (64, 67)
    assert "/nowhere/train.py:3" not in data["sources"]


def test_what_findings_say_cannot_become_markup(failed: Summary) -> None:
    evidence = (Evidence(ranks=(0,), text=EVIL, file=EVIL, line=1),)
    finding = Finding(
        rule=EVIL, severity=Severity.ERROR, message=EVIL, ranks=(0,), evidence=evidence, remedy="]]> --> </script>"
    )
    progress = tuple(replace(row, last_call=EVIL, file=EVIL, stop_reason=EVIL) for row in failed.progress)
    page = run_page(replace(failed, findings=(finding,), progress=progress), None)
    assert EVIL not in page
    assert Elements(page).tags == Elements(run_page(failed, None)).tags


def test_a_page_needs_the_timeline_of_its_summary(rehearsal: Rehearsal, failed: Summary) -> None:
    with pytest.raises(ValueError, match="timeline"):
        run_page(rehearsal.summary, None)
    with pytest.raises(ValueError, match="timeline"):
        run_page(failed, rehearsal.timeline)


def test_failed_runs_can_be_compared(rehearsal: Rehearsal, failed: Summary) -> None:
    data = data_of(compare_page({"failed": failed, "ok": rehearsal.summary}))
    assert [run["summary"]["step_seconds"] is None for run in data["runs"]] == [True, False]


def test_excerpts_are_cut_at_the_ends_of_a_file_and_of_long_lines(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("\n".join(["x" * 1000, "two", "three", "four", "five", "six", "", ""]))
    first = quote_lines([(str(path), 1)])[f"{path}:1"]
    assert first.lines == ("x" * 300, "two", "three", "four")
    last = quote_lines([(str(path), 6)])[f"{path}:6"]
    assert (last.first, last.lines) == (3, ("three", "four", "five", "six"))


@pytest.mark.parametrize("line", [0, -1, 99])
def test_lines_that_do_not_exist_are_not_quoted(tmp_path: Path, line: int) -> None:
    path = tmp_path / "train.py"
    path.write_text("pass\n")
    assert quote_lines([(str(path), line)]) == {}


def test_only_python_files_are_quoted(tmp_path: Path) -> None:
    secret = tmp_path / "passwords.txt"
    secret.write_text("secret\n")
    assert quote_lines([(str(secret), 1), (str(tmp_path), 1), ("", 0), ("x\0.py", 1)]) == {}
