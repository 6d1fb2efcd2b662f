"""`sandtable doctor`: what is installed, what works, and what is missing."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer
from rich.console import Console

from sandtable.diagnosis import diagnose
from sandtable.report.diagnosis import print_diagnosis

__all__ = ["doctor", "register"]

_HELP = """Print what is installed, what works, what is missing and how to get it.

If the virtual GPU is not built for the installed torch yet, builds it (about a minute, once); then tests it. The exit
code is 0 if a rehearsal can run, otherwise 1.

Examples:

  sandtable doctor

  sandtable doctor --json
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor", help=_HELP)(doctor)


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="print the diagnosis as JSON")] = False,
) -> None:
    """Diagnose this installation and print the result."""
    diagnosis = diagnose()
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(diagnosis), indent=2))
    else:
        print_diagnosis(diagnosis, Console())
    raise typer.Exit(0 if diagnosis.can_rehearse else 1)
