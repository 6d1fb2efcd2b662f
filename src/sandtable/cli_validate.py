"""The command line of validation: `sandtable validate`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from sandtable.validation import Choice, cache_directory, fill_page, load_sets, print_report, scatter_svg, validate

__all__ = ["register"]

_HERE = Path(__file__).parents[2] / "validation"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("validate")(_validate)


def _validate(
    sets: Annotated[list[str] | None, typer.Option("--set", help="a set or a score; may be given again")] = None,
    rows: Annotated[list[str] | None, typer.Option("--row", help="a row; may be given again")] = None,
    sample: Annotated[int | None, typer.Option(min=1, help="at most so many rows of each set")] = None,
    captured: Annotated[bool, typer.Option("--captured", help="only rows whose capture is in the cache")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="rows at a time")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="print the outcome as JSON")] = False,
    out: Annotated[Path | None, typer.Option(help="directory for validation.json and validation.svg")] = None,
    fill: Annotated[
        Path | None, typer.Option(help="Markdown page whose marked part is replaced by the figures")
    ] = None,
    all_rows: Annotated[bool, typer.Option("--all", help="print every row of long sets")] = False,
    directory: Annotated[Path | None, typer.Option("--from", help="directory with rows/ and scripts/")] = None,
) -> None:
    """Rehearse runs that others measured, and print by how much the predictions miss.

    Examples:

      sandtable validate --set korthikanti

      sandtable validate --set vtrain-single --sample 40 --jobs 2

      sandtable validate --json > validation.json
    """
    choice = Choice(sets=tuple(sets or ()), rows=tuple(rows or ()), sample=sample, captured_only=captured)
    found = load_sets(directory or (_HERE if _HERE.is_dir() else Path("validation")))
    with _bar(as_json) as progress:
        report = validate(found, choice, cache=cache_directory(), jobs=jobs, progress=progress)
    text = json.dumps(report.to_dict(), indent=1)
    if as_json:
        print(text)
    else:
        print_report(report, Console(), all_rows=all_rows)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "validation.json").write_text(text + "\n", encoding="utf-8")
        (out / "validation.svg").write_text(scatter_svg(report), encoding="utf-8")
    if fill is not None:
        fill_page(fill, report)


@contextmanager
def _bar(is_quiet: bool) -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar on standard error, if somebody is looking."""
    with Progress(console=Console(stderr=True), transient=True, disable=is_quiet) as bar:
        task = bar.add_task("rehearsing", total=None)
        yield lambda done, total, name: bar.update(task, completed=done, total=total, description=name)
