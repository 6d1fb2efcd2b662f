"""`sandtable validate`: rehearse runs that others measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from sandtable.cli.options import Command
from sandtable.events import Event, Listener
from sandtable.report.files import require_writable
from sandtable.validation import (
    Choice,
    RowFailed,
    RowPredicted,
    RowStarted,
    fill_page,
    print_report,
    save_report,
    validate,
)

__all__ = ["ValidateOptions", "register", "run_validation"]

_HELP = """Rehearse runs that others measured, and print how far the predictions are off.

Examples:

  sandtable validate --set korthikanti

  sandtable validate --set vtrain-single --sample 40 --jobs 2

  sandtable validate --json > validation.json
"""


@dataclass(frozen=True, kw_only=True)
class ValidateOptions:
    """The options of `sandtable validate`, as typed."""

    sets: Annotated[list[str] | None, typer.Option("--set", help="a set or a score (repeatable)")] = None
    rows: Annotated[list[str] | None, typer.Option("--row", help="a row (repeatable)")] = None
    sample: Annotated[int | None, typer.Option(min=1, help="at most this many rows of each set")] = None
    captured: Annotated[bool, typer.Option("--captured", help="only rows whose capture is stored")] = False
    jobs: Annotated[int, typer.Option(min=1, help="rows to rehearse at a time")] = 1
    as_json: Annotated[bool, typer.Option("--json", help="print the outcome as JSON")] = False
    out: Annotated[Path | None, typer.Option(help="directory for validation.json and validation.svg")] = None
    fill: Annotated[Path | None, typer.Option(help="Markdown page whose marked part is replaced by the figures")] = None
    all_rows: Annotated[bool, typer.Option("--all", help="print every row of long sets")] = False
    directory: Annotated[Path | None, typer.Option("--from", help="directory with rows/ and scripts/")] = None


def register(app: typer.Typer) -> None:
    """Add the command."""
    Command(name="validate", function=run_validation, options=ValidateOptions).add_to(app, help=_HELP)


def run_validation(options: ValidateOptions) -> None:
    """Validate the chosen rows, then print and write the scores."""
    if options.out is not None:
        require_writable(options.out)
    choice = Choice(
        sets=tuple(options.sets or ()),
        rows=tuple(options.rows or ()),
        sample=options.sample,
        captured_only=options.captured,
    )
    with _progress_bar(is_hidden=options.as_json) as listen:
        report = validate(options.directory, choice=choice, jobs=options.jobs, listen=listen)
    if options.as_json:
        print(json.dumps(report.to_dict(), indent=1))
    else:
        print_report(report, Console(), all_rows=options.all_rows)
    if options.out is not None:
        save_report(report, options.out)
    if options.fill is not None:
        fill_page(options.fill, report)


@contextmanager
def _progress_bar(*, is_hidden: bool) -> Iterator[Listener]:
    """Show progress on standard error, if it is a terminal."""
    with Progress(console=Console(stderr=True), transient=True, disable=is_hidden) as bar:
        task = bar.add_task("rehearsing", total=None)

        def listen(event: Event) -> None:
            if isinstance(event, RowStarted | RowPredicted | RowFailed):
                bar.update(task, completed=event.done, total=event.total, description=event.row_id)

        yield listen
