"""The command line: it parses, calls one function of the library, and prints."""

from __future__ import annotations

import gc
import os
import sys
from typing import Annotated

import typer
from rich.console import Console

from sandtable.cli import check, cluster, doctor, lab, pipeline, plan, report, run, study, validate
from sandtable.errors import SandtableError, ScriptError
from sandtable.version import __version__

__all__ = ["app", "main"]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Rehearse a distributed training run on virtual GPUs before you pay for it.",
)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"sandtable {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Handle options that belong to no command."""


for commands in (run, check, report, cluster, doctor, lab, study, pipeline, plan, validate):
    commands.register(app)


def main() -> None:
    """Run the command line: a user error is one message and exit code 1, Ctrl-C exit code 130."""
    gc.freeze()  # what was imported stays: no collection needs to look at it
    console = Console(stderr=True)
    try:
        app()
    except SandtableError as error:
        prefix = "" if isinstance(error, ScriptError) else "sandtable: "
        console.print(f"{prefix}{error}", style="red", highlight=False, markup=False, soft_wrap=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        console.print("sandtable: stopped")
        sys.exit(130)
    except SystemExit as end:  # typer turns Ctrl-C into one
        if end.__context__ is not None and isinstance(end.__context__.__cause__, KeyboardInterrupt):
            console.print("sandtable: stopped")
        raise
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
