"""The table at the end of a study, for the terminal and as Markdown."""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sandtable.study.comparison import ComparisonRow
from sandtable.study.settings import StudySettings
from sandtable.units import format_bytes, format_seconds

__all__ = ["COLUMNS", "cells", "headline", "markdown", "print_table"]

COLUMNS = (
    ("configuration", "what was run"),
    ("rate", "the highest learning rate"),
    ("accuracy", "of the mean of all replicas on the test images, after the last epoch"),
    ("points", "accuracy minus the first's, in percentage points"),
    ("total time", "training time of the slowest worker, without the time in which accuracy is measured"),
    ("communication", "time in which a worker's messages were in transit, on average"),
    ("synchronisation", "communication and waiting for others"),
    ("sent a worker", "payload bytes a worker sent, on average"),
    ("communication less", "how many times less communication time than the first"),
    ("speed-up", "how many times faster than the first through the same epochs"),
)
"""Each column's title and meaning."""

_LEAST_IMPORTANT = ("rate", "points", "synchronisation", "sent a worker", "communication less", "communication")


def headline(settings: StudySettings) -> str:
    """Return the settings in one line."""
    network = settings.network
    hosts = "loopback" if network.kind == "loopback" else f"hosts with links of {network.rate_mbit:g} Mbit/s"
    workers = f"{settings.workers} worker{'s' if settings.workers > 1 else ''}"
    epochs = f"{settings.epochs} epoch{'s' if settings.epochs > 1 else ''}"
    return f"{settings.data}, {settings.model}, {workers} on {hosts}, batch {settings.batch}, {epochs}"


def cells(row: ComparisonRow) -> tuple[str, ...]:
    """Return one line of the table, as text, in the order of `COLUMNS`."""
    run = row.run
    return (
        run.name,
        "" if run.learning_rate is None else f"{run.learning_rate:g}",
        f"{run.accuracy:.2%}",
        f"{row.points:+.2f}",
        format_seconds(run.seconds),
        format_seconds(run.communication_s),
        format_seconds(run.synchronisation_s),
        format_bytes(round(run.sent_bytes)),
        "none" if row.communication_less == float("inf") else f"{row.communication_less:.1f} ×",
        f"{row.speed_up:.2f} ×",
    )


def print_table(rows: Sequence[ComparisonRow], settings: StudySettings, console: Console) -> None:
    """Print the runs side by side; a narrow terminal shows only the most important columns."""
    lines = [cells(row) for row in rows]
    shown = _fitting_columns(lines, console.width)
    console.print(f"[bold]{headline(settings)}[/bold]", highlight=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for index in shown:
        table.add_column(COLUMNS[index][0], justify="right" if index else "left", no_wrap=True)
    for line in lines:
        table.add_row(*(escape(line[index]) for index in shown))
    console.print(table)
    if len(shown) < len(COLUMNS):
        left_out = ", ".join(name for index, (name, _) in enumerate(COLUMNS) if index not in shown)
        console.print(f"[dim]{left_out}: in results.json and study.html[/dim]", highlight=False)


def markdown(rows: Sequence[ComparisonRow], settings: StudySettings) -> str:
    """Return the same table as Markdown, with every column."""
    lines = [tuple(name for name, _ in COLUMNS), ("---", *["---:"] * (len(COLUMNS) - 1)), *map(cells, rows)]
    texts = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join([headline(settings), "", *(f"| {' | '.join(line)} |" for line in texts), ""])


def _fitting_columns(lines: Sequence[tuple[str, ...]], width: int) -> list[int]:
    """Return the indices of the columns to show: names and accuracy always, the others if there is room."""
    texts = [[name, *(line[index] for line in lines)] for index, (name, _) in enumerate(COLUMNS)]
    widths = [2 + max(len(text) for text in column) for column in texts]
    shown = list(range(len(COLUMNS)))
    for name in _LEAST_IMPORTANT:
        if sum(widths[index] for index in shown) <= width:
            break
        shown.remove([column for column, _ in COLUMNS].index(name))
    return shown
