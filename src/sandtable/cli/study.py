"""`sandtable study`: compare methods of training on the same data and links."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape

from sandtable.cli.options import Command
from sandtable.study import PreparedMethod, StudyInputs, StudyListing, list_study, prepare_study, run_study
from sandtable.study.progress import StudyTerminal
from sandtable.study.table import print_table

__all__ = ["StudyOptions", "register", "study"]

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


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """The options of `sandtable study`, as typed."""

    file: Annotated[Path | None, typer.Argument(help="settings as TOML; by default the ten configurations")] = None
    data: Annotated[Path | None, typer.Option(help="folder of the data sets [default: ~/.cache/sandtable/data]")] = None
    workers: Annotated[int | None, typer.Option(min=1, help="number of workers")] = None
    epochs: Annotated[int | None, typer.Option(min=1, help="passes over all images")] = None
    network: Annotated[
        Literal["loopback", "lab"] | None, typer.Option(help="network between workers; the lab needs Linux and root")
    ] = None
    rate_mbit: Annotated[float | None, typer.Option(min=0.001, help="rate of each link of the lab in Mbit/s")] = None
    cores_per_host: Annotated[
        float | None, typer.Option(min=0.0, help="processors per host of the lab; 0: no limit [default: equal parts]")
    ] = None
    out: Annotated[Path, typer.Option(help="folder for runs, table, plots and page")] = Path("sandtable-study")
    only: Annotated[
        list[str] | None, typer.Option(help="a configuration, by its name or a part of it (repeatable)")
    ] = None
    show: Annotated[bool, typer.Option("--list", help="list the configurations and which are stored")] = False
    prepare: Annotated[
        bool, typer.Option("--prepare", help="only write study.json, and print the torchrun commands for a cluster")
    ] = False

    @property
    def inputs(self) -> StudyInputs:
        return StudyInputs(
            file=self.file,
            data=self.data,
            out=self.out,
            only=tuple(self.only or ()),
            workers=self.workers,
            epochs=self.epochs,
            network=self.network,
            rate_mbit=self.rate_mbit,
            cores_per_host=self.cores_per_host,
            command=shlex.join(["sandtable", *sys.argv[1:]]),
        )


def register(app: typer.Typer) -> None:
    """Add the command."""
    Command(name="study", function=study, options=StudyOptions).add_to(app, help=_HELP)


def study(options: StudyOptions) -> None:
    """Run a study, list its configurations, or prepare it for a cluster."""
    console = Console() if sys.stdout.isatty() else Console(width=_WIDE)
    if options.show:
        _print_listing(list_study(options.inputs), console)
    elif options.prepare:
        _print_commands(prepare_study(options.inputs), console)
    else:
        with StudyTerminal(console) as terminal:
            result = run_study(options.inputs, listen=terminal)
        print_table(result.rows, result.settings, console)
        written = ", ".join(map(str, result.files))
        console.print(f"[dim]wrote[/dim] {written}", highlight=False, soft_wrap=True)


def _print_listing(listing: StudyListing, console: Console) -> None:
    console.print(listing.headline, highlight=False)
    for method in listing.methods:
        mark = "stored" if method.is_stored else "to run"
        # Expressions may contain brackets, which rich would take for its own.
        line = f"  {mark}  [bold]{escape(method.name)}[/bold]  [dim]{escape(method.expression)}[/dim]"
        console.print(line, highlight=False, soft_wrap=True)


def _print_commands(methods: Sequence[PreparedMethod], console: Console) -> None:
    for method in methods:
        console.print(f"[dim]# {escape(method.name)}[/dim]", highlight=False)
        print(method.command)
