"""Findings on a terminal, and how far each rank of a run got."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sandtable.findings import Evidence, Finding, Severity, name_ranks, place_text, worst_first
from sandtable.report.source_lines import shorten_path
from sandtable.report.summary import Summary
from sandtable.trace import ClassSummary, RankProgress
from sandtable.units import format_count

__all__ = ["print_findings", "print_progress", "print_verdict", "verdict_of"]

_MAX_EVIDENCE = 6
_MAX_ROWS = 20
_MAX_ALIKE = 3
"""Of more findings of one rule, the report shows the rest."""

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.NOTE: "bold blue"}
_STOP_REASONS = {
    "": "end of the script",
    "script ended": "end of the script",
    "failed": "the script failed",
    "steps": "step limit",
    "max-operators": "operator limit",
}


def print_findings(findings: Sequence[Finding], console: Console) -> None:
    """Print what is wrong, worst first: severity, rule, message, evidence with script lines, remedy."""
    counts: Counter[tuple[Severity, str]] = Counter()
    for finding in worst_first(findings):
        counts[finding.severity, finding.rule] += 1
        if counts[finding.severity, finding.rule] <= _MAX_ALIKE:
            _print_finding(finding, console)
    for (severity, rule), count in counts.items():
        if count > _MAX_ALIKE:
            text = f"\n{_count(count - _MAX_ALIKE, f'more {severity.value}')} of {rule}: see the report"
            console.print(text, style="dim", highlight=False)


def _print_finding(finding: Finding, console: Console) -> None:
    style = _STYLES[finding.severity]
    head = Text.assemble("\n", (finding.severity.value, style), (f" {finding.rule}", "bold"), f"  {finding.message}")
    console.print(head, highlight=False)
    for evidence in finding.evidence[:_MAX_EVIDENCE]:
        console.print(Padding(_evidence(evidence), (0, 0, 0, 2), expand=False), highlight=False)
    if len(finding.evidence) > _MAX_EVIDENCE:
        console.print(f"  and {len(finding.evidence) - _MAX_EVIDENCE} more", style="dim", highlight=False)
    if finding.remedy:
        remedy = Text.assemble(("remedy ", "green"), finding.remedy)
        console.print(Padding(remedy, (0, 0, 0, 2), expand=False), highlight=False)


def print_verdict(run: Summary, console: Console) -> None:
    """Print on one line how many mistakes were found, and in what."""
    worst = next(iter(worst_first(run.findings)), None)
    style = "bold green" if worst is None or worst.severity is Severity.NOTE else _STYLES[worst.severity]
    console.print(Text.assemble("\n", (verdict_of(run), style)), highlight=False, soft_wrap=True)


def verdict_of(run: Summary) -> str:
    """Return how many mistakes were found, and in what: `2 errors, 1 warning in 3 steps of 8 ranks`."""
    counts = Counter(finding.severity for finding in run.findings)
    named = [_count(counts[severity], severity.value) for severity in Severity if counts[severity]]
    has_mistakes = counts[Severity.ERROR] + counts[Severity.WARNING] > 0
    checked = f"{_count(run.capture.num_steps, 'step')} of {_count(run.world_size, 'rank')}"
    num_captured = len(run.capture.captured_ranks)
    if num_captured < run.world_size:
        checked += f", of which {num_captured:,} ran"
    words = [f"{', '.join(named) if has_mistakes else 'no mistakes found'} in {checked}"]
    if named and not has_mistakes:
        words.append(_count(counts[Severity.NOTE], "note"))
    if run.silenced:
        words.append(f"{len(run.silenced)} silenced")
    return "; ".join(words)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def print_progress(progress: Sequence[RankProgress], classes: Sequence[ClassSummary], console: Console) -> None:
    """Print one row per captured class: how far it got, its last call and why it stopped."""
    if not progress:
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("ranks", no_wrap=True)
    for name in ("steps", "operators"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("last call")
    table.add_column("stopped")
    class_of = {row.representative: row for row in classes}
    for row in progress[:_MAX_ROWS]:
        table.add_row(*_cells(row, class_of.get(row.rank)))
    if len(progress) > _MAX_ROWS:
        table.add_row(f"... {len(progress) - _MAX_ROWS} more", "", "", "", "")
    console.print(Padding(table, (1, 0, 0, 0)))


def _evidence(evidence: Evidence) -> Text:
    text = Text(f"{name_ranks(evidence.ranks)} {evidence.text}")
    if evidence.file:
        text.append(f"  {place_text(shorten_path(evidence.file), evidence.line)}", style="cyan")
    return text


def _cells(row: RankProgress, rank_class: ClassSummary | None) -> tuple[Text, ...]:
    place = place_text(shorten_path(row.file), row.line) if row.file else ""
    call = Text(row.last_call or "none")
    if place:
        call.append(f"  {place}", style="cyan")
    return (
        Text(rank_class.ranks if rank_class else str(row.rank)),
        Text(format_count(row.num_steps)),
        Text(format_count(row.num_operators)),
        call,
        Text(_STOP_REASONS.get(row.stop_reason, row.stop_reason)),
    )
