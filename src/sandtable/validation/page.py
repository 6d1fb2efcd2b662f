"""Page: the figures of a validation inside a Markdown page, between two marks, so that nobody types them."""

from pathlib import Path

from sandtable.errors import ValidationSetError
from sandtable.validation.run import Report
from sandtable.validation.show import summary_rows

__all__ = ["fill_page", "markdown"]

BEGIN, END = "<!-- validation: begin -->", "<!-- validation: end -->"


def fill_page(file: Path, report: Report) -> None:
    """Put the report's tables between the marks of `file`."""
    text = file.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValidationSetError(f"{file}: the page must have the lines '{BEGIN}' and '{END}'; add them")
    file.write_text(f"{before}{BEGIN}\n{markdown(report)}\n{END}{after}", encoding="utf-8")


def markdown(report: Report) -> str:
    """Errors of each score, the rows that miss most, and how good the picks are."""
    lines = ["| set | rows | mean | median | worst | aim |", "|---|---|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in summary_rows(report)]
    worst = [(each.name, outcome) for each in report.scores for outcome in each.outcomes if outcome.counts]
    worst.sort(key=lambda pair: -abs(pair[1].error_pct))
    if worst:
        lines += ["", "The rows that miss most:", "", "| row | predicted | measured | error |", "|---|---|---|---|"]
    for _, outcome in worst[:15]:
        figures = f"{outcome.predicted:.4g} | {outcome.measured:.4g} | {outcome.error_pct:+.1f} %"
        lines.append(f"| {outcome.row.id} | {figures} |")
    found = {name: each for name, each in report.contests.items() if each}
    if found:
        lines += ["", "Of several ways to split one model, the one predicted best against the one measured best:", ""]
        lines += ["| set | models | within 2 % | worst |", "|---|---|---|---|"]
    for name, each in found.items():
        good = sum(contest.regret_pct <= 2.0 for contest in each)
        lines.append(f"| {name} | {len(each)} | {good} | {max(c.regret_pct for c in each):.1f} % |")
    return "\n".join(lines)
