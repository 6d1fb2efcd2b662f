"""The command line of studies: `sandtable study`."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape

from sandtable.study import StudySettings, load_settings
from sandtable.study.assignment import Assignment
from sandtable.study.comparison import compare
from sandtable.study.page import study_page
from sandtable.study.plots import write_plots
from sandtable.study.progress import TerminalView
from sandtable.study.results import Run
from sandtable.study.runner import check_methods, chosen, run_study
from sandtable.study.store import Store
from sandtable.study.table import headline, markdown, print_table

__all__ = ["register"]

_HELP = """Train by several methods on the same data and links, and compare them: accuracy, time, bytes.

Without a file: ten configurations of local SGD, gossip and sparse gossip on CIFAR-10, eight workers on this machine's
loopback. Each finished run is stored, so a stopped study continues with the same command. Ends with a table,
results.json, plots as PNG and study.html.

Examples:

  sandtable study --list

  sandtable study --data ~/data --epochs 5 --workers 4

  sudo sandtable study --data ~/data --network lab --rate-mbit 100 --out cifar10-8

  sudo sandtable study --network lab --workers 16 --only "all-reduce" --only "LocalSGD(16), gossip + threshold"

  sandtable study mine.toml --out mine
"""

_WIDE = 160
"""Columns of a file or a pipe."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("study", help=_HELP)(_study)


def _study(
    file: Annotated[Path | None, typer.Argument(help="settings as TOML; left out: the ten configurations")] = None,
    data: Annotated[
        Path | None, typer.Option(help="folder of the data sets [default: ~/.cache/sandtable/data]")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="number of workers")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="times that all images are gone through")] = None,
    network: Annotated[
        Literal["loopback", "lab"] | None, typer.Option(help="over what workers talk; the lab needs Linux and root")
    ] = None,
    rate_mbit: Annotated[float | None, typer.Option(min=0.001, help="rate of a link of the lab in Mbit/s")] = None,
    cores_per_host: Annotated[
        float | None, typer.Option(min=0.0, help="processors of a host of the lab; 0: no limit [default: equal parts]")
    ] = None,
    out: Annotated[Path, typer.Option(help="folder for runs, table, plots and page")] = Path("sandtable-study"),
    only: Annotated[
        list[str] | None, typer.Option(help="a configuration, by its name or a part of it; may be given again")
    ] = None,
    show: Annotated[bool, typer.Option("--list", help="list the configurations and which are stored")] = False,
    prepare: Annotated[
        bool, typer.Option("--prepare", help="only write study.json, and print the torchrun commands for a cluster")
    ] = False,
) -> None:
    settings = load_settings(file) if file is not None else StudySettings()
    settings = settings.changed(
        workers=workers, epochs=epochs, kind=network, rate_mbit=rate_mbit, cores_per_host=cores_per_host
    )
    assignment = Assignment(settings=settings, data=data or _data_folder(), out=out)
    console = Console() if sys.stdout.isatty() else Console(width=_WIDE)
    if show:
        _list(assignment, only or (), console)
    elif prepare:
        _prepare(assignment, only or (), console)
    else:
        console.print(f"[dim]{headline(settings)}[/dim]", highlight=False, soft_wrap=True)
        with TerminalView(console) as view:
            runs = run_study(assignment, only=only or (), view=view)
        _tell(runs, assignment, console)


def _tell(runs: Sequence[Run], assignment: Assignment, console: Console) -> None:
    """The table, and what is drawn from the same rows."""
    rows = compare(runs)
    print_table(rows, assignment.settings, console)
    files = [assignment.out / "results.json", *write_plots(rows, assignment.out)]
    table, page = assignment.out / "table.md", assignment.out / "study.html"
    table.write_text(markdown(rows, assignment.settings), encoding="utf-8")
    page.write_text(
        study_page(rows, assignment.settings, command=shlex.join(["sandtable", *sys.argv[1:]])), encoding="utf-8"
    )
    written = ", ".join(str(each) for each in (*files, table, page))
    console.print(f"[dim]wrote[/dim] {written}", highlight=False, soft_wrap=True)


def _list(assignment: Assignment, only: Sequence[str], console: Console) -> None:
    store = Store(assignment)
    console.print(headline(assignment.settings), highlight=False)
    for method in chosen(assignment.settings, only):
        mark = "stored" if store.find(method) else "to run"
        # The words may have brackets, which rich would take for its own.
        what = f"  {mark}  [bold]{escape(method.name)}[/bold]  [dim]{escape(method.words)}[/dim]"
        console.print(what, highlight=False, soft_wrap=True)


def _prepare(assignment: Assignment, only: Sequence[str], console: Console) -> None:
    """For a real cluster: the same command on every node, with torchrun's own options for it."""
    methods = chosen(assignment.settings, only)
    check_methods(methods, assignment)
    file = assignment.save()
    for method in methods:
        index = assignment.settings.index_of(method.name)
        console.print(f"[dim]# {escape(method.name)}[/dim]", highlight=False)
        print(f"torchrun --nnodes ... --nproc-per-node ... -m sandtable.study.worker {file} {index}")


def _data_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "sandtable" / "data"
