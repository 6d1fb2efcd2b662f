"""Tables: a validation's figures on a terminal, or between two marks of a Markdown page."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from sandtable.errors import ValidationSetError
from sandtable.validation.quantities import TITLES
from sandtable.validation.scores import Score, ValidationReport

__all__ = ["fill_page", "markdown", "print_report"]

BEGIN, END = "<!-- validation: begin -->", "<!-- validation: end -->"
_MAX_ROWS = 60
_MAX_WORST_ROWS = 15


def print_report(report: ValidationReport, console: Console, *, all_rows: bool = False) -> None:
    """Print every score that has rows, then the summary."""
    for score in report.scores:
        if score.outcomes:
            console.print(_table(score, all_rows=all_rows))
    for name, reason in report.failures.items():
        console.print(f"[red]{name}[/] could not be rehearsed: {reason.splitlines()[0]}", highlight=False)
    console.print(_summary(report))
    for name, contests in report.contests.items():
        if contests:
            worst = max(contests, key=lambda contest: contest.regret_pct)
            good = sum(contest.is_good for contest in contests)
            console.print(
                f"{name}: of {len(contests)} models with several ways to split them, the one predicted best is within "
                f"2 % of the best in {good}; at worst {worst.regret_pct:.1f} % slower, {worst.pick.row.id} instead of "
                f"{worst.best.row.id}",
                highlight=False,
            )


def fill_page(file: Path, report: ValidationReport) -> None:
    """Replace what is between the marks of `file` by the report's tables."""
    text = file.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValidationSetError(f"{file}: the page must have the lines '{BEGIN}' and '{END}'; add them")
    file.write_text(f"{before}{BEGIN}\n{markdown(report)}\n{END}{after}", encoding="utf-8")


def markdown(report: ValidationReport) -> str:
    """Return the errors of each score, the rows that miss most, and the quality of the picks."""
    lines = ["| set | rows | mean | median | worst | aim |", "|---|---|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in _summary_rows(report)]
    worst = [outcome for score in report.scores for outcome in score.outcomes if outcome.counts]
    worst.sort(key=lambda outcome: -abs(outcome.error_pct))
    if worst:
        lines += ["", "The rows that miss most:", "", "| row | predicted | measured | error |", "|---|---|---|---|"]
    for outcome in worst[:_MAX_WORST_ROWS]:
        figures = f"{outcome.predicted:.4g} | {outcome.measured:.4g} | {outcome.error_pct:+.1f} %"
        lines.append(f"| {outcome.row.id} | {figures} |")
    ranked = {name: contests for name, contests in report.contests.items() if contests}
    if ranked:
        lines += ["", "Of several ways to split one model, the one predicted best against the one measured best:", ""]
        lines += ["| set | models | within 2 % | worst |", "|---|---|---|---|"]
    for name, contests in ranked.items():
        good, worst_pct = sum(contest.is_good for contest in contests), max(contest.regret_pct for contest in contests)
        lines.append(f"| {name} | {len(contests)} | {good} | {worst_pct:.1f} % |")
    return "\n".join(lines)


def _summary_rows(report: ValidationReport) -> list[tuple[str, ...]]:
    """Return one line per score: name, rows, mean, median, worst, aim."""
    return [
        (
            score.name,
            str(len(score.errors_pct)),
            _percent(score.mean_abs_pct),
            _percent(score.median_abs_pct),
            _percent(score.max_abs_pct),
            "" if score.limit_pct is None else f"{score.limit_pct:g} %",
        )
        for score in report.scores
        if score.outcomes
    ]


def _table(score: Score, *, all_rows: bool) -> Table:
    table = Table(title=f"{score.name}: {TITLES[score.quantity]}", title_justify="left", box=None, pad_edge=False)
    for heading in ("row", "predicted", "measured", "error"):
        table.add_column(heading, justify="left" if heading == "row" else "right")
    outcomes = sorted(score.outcomes, key=lambda outcome: -abs(outcome.error_pct))
    shown = outcomes if all_rows else outcomes[:_MAX_ROWS]
    for outcome in sorted(shown, key=lambda outcome: score.outcomes.index(outcome)):
        mark = "" if outcome.counts else " [dim](calibrated on)[/]"
        table.add_row(
            outcome.row.id + mark, f"{outcome.predicted:.4g}", f"{outcome.measured:.4g}", f"{outcome.error_pct:+.1f} %"
        )
    if len(shown) < len(outcomes):
        table.caption = f"the {len(shown)} rows of {len(outcomes)} that miss most; --all shows every one"
    return table


def _summary(report: ValidationReport) -> Table:
    table = Table(title="absolute error of rows not calibrated on", title_justify="left", box=None, pad_edge=False)
    for heading in ("set", "rows", "mean", "median", "worst", "aim"):
        table.add_column(heading, justify="left" if heading == "set" else "right")
    for row in _summary_rows(report):
        table.add_row(*row)
    return table


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} %"
