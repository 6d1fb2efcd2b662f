"""`sandtable check`: rehearse a script to find its mistakes, and explain the rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from sandtable.check import explain, rule_pages
from sandtable.cli.options import Command
from sandtable.cli.rehearsing import FailOn, RehearsalOptions, is_bad, print_traceback, rehearse_as_typed
from sandtable.cli.torchrun import ignored_options
from sandtable.errors import LaunchError
from sandtable.report import files_in, print_findings, print_verdict

__all__ = ["CheckOptions", "check", "register"]

_FINDINGS = "Findings"

_HELP = """Find the mistakes of a training script before it runs on a cluster.

The script runs on virtual GPUs, as under `sandtable run`, and takes the same forms: the launch command, or the script
or notebook with the flags of torchrun.

  sandtable check --nproc-per-node 8 train.py --batch-size 32

  sandtable check --cluster dgx-h100 -- srun --nodes 16 torchrun --nnodes 16 --nproc-per-node 8 train.py

Exit code 0: nothing as bad as --fail-on. 1: something is. 2: the command line is wrong.

  sandtable check --fail-on warning --sarif findings.sarif --nproc-per-node 8 train.py

Silence a rule with --ignore, or on one line of the script with a comment: `# sandtable: ignore\\[deadlock]`.

  sandtable check --rules

  sandtable check --explain deadlock
"""


@dataclass(frozen=True, kw_only=True)
class CheckOptions(RehearsalOptions):
    """The options of `sandtable check`, as typed."""

    script: Annotated[
        str,
        typer.Argument(
            help="the launch command, or the training script, or with -m a module",
            show_default=False,
            metavar="COMMAND|SCRIPT",
        ),
    ] = ""
    fail_on: Annotated[
        FailOn, typer.Option(help="the mildest findings that make the exit code 1", rich_help_panel=_FINDINGS)
    ] = FailOn.ERROR
    explain: Annotated[
        str, typer.Option(metavar="RULE", help="print the page of a rule, and stop", rich_help_panel=_FINDINGS)
    ] = ""
    rules: Annotated[bool, typer.Option("--rules", help="list all rules, and stop", rich_help_panel=_FINDINGS)] = False


def register(app: typer.Typer) -> None:
    """Add the command."""
    Command(name="check", function=check, options=CheckOptions, ignored=ignored_options()).add_to(
        app,
        help=_HELP,
        no_args_is_help=True,
        context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
    )


def check(options: CheckOptions) -> None:
    """Rehearse the command or the script, and print what is wrong with it."""
    console = Console()
    if options.rules:
        _print_rules(console)
    elif options.explain:
        console.print(Markdown(explain(options.explain).text))
    elif not options.script:
        raise LaunchError("a check needs a script or a launch command; for example sandtable check train.py")
    else:
        _check(options, console)


def _check(options: CheckOptions, console: Console) -> None:
    rehearsal = rehearse_as_typed(options, options.launch)
    print_traceback(rehearsal, Console(stderr=True))
    print_findings(rehearsal.findings, console)
    print_verdict(rehearsal.summary, console)
    report = files_in(options.out).get("report")
    if rehearsal.findings and report is not None:
        text = f"report {report}   explanation: sandtable check --explain {rehearsal.findings[0].rule}"
        console.print(text, style="dim", highlight=False, markup=False, soft_wrap=True)
    if is_bad(rehearsal, options.fail_on):
        raise typer.Exit(1)


def _print_rules(console: Console) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for page in rule_pages().values():
        table.add_row(page.rule, page.sentence)
    console.print(table)
