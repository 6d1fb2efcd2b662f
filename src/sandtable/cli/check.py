"""`sandtable check`: rehearse a script to find its mistakes, and explain the rules."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar

import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from sandtable.check import explain, rule_pages
from sandtable.cli.options import Command
from sandtable.cli.rehearsing import FailOn, RehearsalOptions, is_bad, print_traceback, rehearse_as_typed
from sandtable.cli.torchrun import ignored_options
from sandtable.errors import LaunchError
from sandtable.launch import is_launch_command
from sandtable.rehearsal import Rehearsal
from sandtable.rehearsal.parity import ParityOptions, check_parity, check_parity_command
from sandtable.report import files_in, print_findings, print_verdict, write_sarif
from sandtable.report.progress import TerminalListener

__all__ = ["CheckOptions", "check", "register"]

_FINDINGS = "Findings"
_PARITY = "Parity"

_HELP = """Find the mistakes of a training script before it runs on a cluster.

The script runs on virtual GPUs, as under `sandtable run`, and takes the same forms: the launch command, or the script
or notebook with the flags of torchrun.

  sandtable check --nproc-per-node 8 train.py --batch-size 32

  sandtable check --cluster dgx-h100 -- srun --nodes 16 torchrun --nnodes 16 --nproc-per-node 8 train.py

Exit code 0: nothing as bad as --fail-on. 1: something is. 2: the command line is wrong.

  sandtable check --fail-on warning --sarif findings.sarif --nproc-per-node 8 train.py

Silence a rule with --ignore, or on one line of the script with a comment: `# sandtable: ignore\\[host-read-in-loop]`.

With --parity the script also runs for its numbers, small and on the CPU, with all ranks and with one: their gradients
must agree.

  sandtable check --parity --shrink "--layers 2 --hidden 64" --single "--tp 1" --nproc-per-node 4 train.py --tp 2

  sandtable check --rules

  sandtable check --explain gradients-not-reduced
"""


@dataclass(frozen=True, kw_only=True)
class CheckOptions(RehearsalOptions):
    """The options of `sandtable check`, as typed."""

    needs_time: ClassVar[bool] = False

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
    parity: Annotated[
        bool,
        typer.Option("--parity", help="compare gradients of all ranks with one process's", rich_help_panel=_PARITY),
    ] = False
    shrink: Annotated[
        str,
        typer.Option(metavar="ARGUMENTS", help="arguments that make the model small", rich_help_panel=_PARITY),
    ] = ""
    single: Annotated[
        str,
        typer.Option(metavar="ARGUMENTS", help="arguments for the run with one rank", rich_help_panel=_PARITY),
    ] = ""
    rtol: Annotated[
        float | None,
        typer.Option(min=0.0, help="how far a gradient may be off (default 0.001, or 0.06)", rich_help_panel=_PARITY),
    ] = None
    rules: Annotated[bool, typer.Option("--rules", help="list all rules, and stop", rich_help_panel=_FINDINGS)] = False


_FOLLOW_SECONDS = 5.0
"""How long a check follows a script after the captured steps: longer than a rehearsal, whose purpose is another."""

_FEW_RANKS = 64
"""Up to this many ranks all run, if they take only seconds: any of them may be the one that does something else."""


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
    rehearsal = rehearse_as_typed(
        options, replace(options.launch, follow_seconds=_FOLLOW_SECONDS, few_ranks=_FEW_RANKS)
    )
    if options.parity and rehearsal.error is None:
        rehearsal = _with_parity(options, rehearsal, console)
    print_traceback(rehearsal, Console(stderr=True))
    print_findings(rehearsal.findings, console)
    print_verdict(rehearsal.summary, console)
    report = files_in(options.out).get("report")
    if rehearsal.findings and report is not None:
        text = f"report {report}   explanation: sandtable check --explain {rehearsal.findings[0].rule}"
        console.print(text, style="dim", highlight=False, markup=False, soft_wrap=True)
    if is_bad(rehearsal, options.fail_on):
        raise typer.Exit(1)


def _with_parity(options: CheckOptions, rehearsal: Rehearsal, console: Console) -> Rehearsal:
    """Return the rehearsal with the findings of parity, and save it again if there are any."""
    words = (options.script, *(options.args or ()))
    is_command = not options.module and is_launch_command(options.script)
    with TerminalListener() as listen:
        start = partial(check_parity_command, words) if is_command else partial(check_parity, *words)
        outcome = start(
            cluster=options.cluster,
            nodes=options.num_nodes if is_command else options.num_nodes or 1,
            parity=ParityOptions(shrink=options.shrink, single=options.single, rtol=options.rtol),
            options=replace(options.launch, listen=listen),
        )
    console.print(outcome.describe(), style="dim", highlight=False, markup=False, soft_wrap=True)
    if not outcome.findings:
        return rehearsal
    rehearsal = rehearsal.with_findings(outcome.findings)
    rehearsal.save_report(options.out)
    if options.sarif is not None:
        write_sarif(rehearsal.summary, options.sarif)
    return rehearsal


def _print_rules(console: Console) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for page in rule_pages().values():
        table.add_row(page.rule, page.sentence)
    console.print(table)
