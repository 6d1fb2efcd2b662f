"""The table at the end of a study."""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sandtable.study.comparison import Row
from sandtable.study.settings import StudySettings
from sandtable.units import format_bytes, format_seconds

__all__ = ["COLUMNS", "cells", "headline", "markdown", "print_table"]

COLUMNS = (
    ("configuration", "what was run"),
    ("rate", "the highest learning rate"),
    ("accuracy", "of the mean of all replicas on the test images, after the last epoch"),
    ("points", "accuracy less the first's, in points of a hundred"),
    ("total time", "of the training clock, which stands still while accuracy is measured"),
    ("communication", "time in which a worker's messages were on their way, on average"),
    ("synchronisation", "communication and waiting for others"),
    ("sent a worker", "payload bytes a worker sent, on average"),
    ("communication less", "times less communication time than the first"),
    ("speed-up", "times sooner than the first through the same epochs"),
)
"""What a column is called, and what it means."""

_LEAST_FIRST = ("rate", "points", "synchronisation", "sent a worker", "communication less", "communication")


def headline(settings: StudySettings) -> str:
    """The settings in one line."""
    network = settings.network
    where = "loopback" if network.kind == "loopback" else f"hosts with links of {network.rate_mbit:g} Mbit/s"
    workers = f"{settings.workers} worker{'s' if settings.workers > 1 else ''}"
    return f"{settings.data}, {settings.model}, {workers} on {where}, batch {settings.batch}, {settings.epochs} epochs"


def cells(row: Row) -> tuple[str, ...]:
    """One line of the table, as text, in the order of `COLUMNS`."""
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


def print_table(rows: Sequence[Row], settings: StudySettings, console: Console) -> None:
    """Print the runs side by side; where the terminal is narrow, without the columns that say least."""
    lines = [cells(row) for row in rows]
    shown = _that_fit(lines, console.width)
    console.print(f"[bold]{headline(settings)}[/bold]", highlight=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for place in shown:
        table.add_column(COLUMNS[place][0], justify="right" if place else "left", no_wrap=True)
    for line in lines:
        table.add_row(*(escape(line[place]) for place in shown))
    console.print(table)
    if len(shown) < len(COLUMNS):
        left_out = ", ".join(name for place, (name, _) in enumerate(COLUMNS) if place not in shown)
        console.print(f"[dim]{left_out}: in results.json and study.html[/dim]", highlight=False)


def markdown(rows: Sequence[Row], settings: StudySettings) -> str:
    """The same table, every column of it, for a page of Markdown."""
    lines = [tuple(name for name, _ in COLUMNS), ("---", *["---:"] * (len(COLUMNS) - 1)), *map(cells, rows)]
    texts = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join([headline(settings), "", *(f"| {' | '.join(line)} |" for line in texts), ""])


def _that_fit(lines: Sequence[tuple[str, ...]], width: int) -> list[int]:
    """Places of the columns to show: names and accuracy always, the others as long as there is room."""
    texts = [[name, *(line[place] for line in lines)] for place, (name, _) in enumerate(COLUMNS)]
    widths = [2 + max(len(text) for text in column) for column in texts]
    shown = list(range(len(COLUMNS)))
    for name in _LEAST_FIRST:
        if sum(widths[place] for place in shown) <= width:
            break
        shown.remove([column for column, _ in COLUMNS].index(name))
    return shown
