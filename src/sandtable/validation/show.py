"""Show: the outcome on a terminal, a table for each score and one over all."""

from rich.console import Console
from rich.table import Table

from sandtable.validation.quantities import TITLES
from sandtable.validation.run import Report
from sandtable.validation.scores import Score

__all__ = ["print_report", "summary_rows"]

_MAX_ROWS = 60


def print_report(report: Report, console: Console, *, all_rows: bool = False) -> None:
    """Every score that has rows, then the summary."""
    for each in report.scores:
        if each.outcomes:
            console.print(_table(each, all_rows=all_rows))
    for name, reason in report.failures.items():
        console.print(f"[red]{name}[/] could not be rehearsed: {reason.splitlines()[0]}", highlight=False)
    console.print(_summary(report))
    for name, found in report.contests.items():
        if found:
            worst = max(found, key=lambda each: each.regret_pct)
            good = sum(each.regret_pct <= 2.0 for each in found)
            console.print(
                f"{name}: of {len(found)} models with several ways to split them, the one predicted best is within 2 % "
                f"of the best in {good}; at worst {worst.regret_pct:.1f} % slower, {worst.pick.row.id} instead of "
                f"{worst.best.row.id}",
                highlight=False,
            )


def summary_rows(report: Report) -> list[tuple[str, ...]]:
    """A line a score: name, rows, mean, median, worst, what was aimed at."""
    return [
        (
            each.name,
            str(len(each.errors_pct)),
            _percent(each.mean_abs_pct),
            _percent(each.median_abs_pct),
            _percent(each.max_abs_pct),
            "" if each.limit_pct is None else f"{each.limit_pct:g} %",
        )
        for each in report.scores
        if each.outcomes
    ]


def _table(each: Score, *, all_rows: bool) -> Table:
    table = Table(title=f"{each.name}: {TITLES[each.quantity]}", title_justify="left", box=None, pad_edge=False)
    for heading in ("row", "predicted", "measured", "error"):
        table.add_column(heading, justify="left" if heading == "row" else "right")
    outcomes = sorted(each.outcomes, key=lambda outcome: -abs(outcome.error_pct))
    shown = outcomes if all_rows else outcomes[:_MAX_ROWS]
    for outcome in sorted(shown, key=lambda outcome: each.outcomes.index(outcome)):
        mark = "" if outcome.counts else " [dim](calibrated on)[/]"
        table.add_row(
            outcome.row.id + mark, f"{outcome.predicted:.4g}", f"{outcome.measured:.4g}", f"{outcome.error_pct:+.1f} %"
        )
    if len(shown) < len(outcomes):
        table.caption = f"the {len(shown)} rows of {len(outcomes)} that miss most; --all shows every one"
    return table


def _summary(report: Report) -> Table:
    table = Table(title="absolute error of rows not calibrated on", title_justify="left", box=None, pad_edge=False)
    for heading in ("set", "rows", "mean", "median", "worst", "aim"):
        table.add_column(heading, justify="left" if heading == "set" else "right")
    for row in summary_rows(report):
        table.add_row(*row)
    return table


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} %"
