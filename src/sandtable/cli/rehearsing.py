"""What `sandtable run` and `sandtable check` share: the options of a rehearsal, and how it starts and ends."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import typer
from rich.console import Console

from sandtable.cli.options import WhatIfOptions, parse_ranks
from sandtable.errors import ScriptError
from sandtable.findings import Severity
from sandtable.launch import is_launch_command, parse_nnodes, parse_nproc_per_node
from sandtable.rehearsal import LaunchOptions, Rehearsal, rehearse, rehearse_command
from sandtable.report import UserInputs, require_writable, write_sarif
from sandtable.report.progress import TerminalListener

__all__ = ["DEFAULT_OUT", "FailOn", "RehearsalOptions", "is_bad", "print_traceback", "rehearse_as_typed"]

DEFAULT_OUT = Path("sandtable-out")
_FINDINGS = "Findings"


class FailOn(StrEnum):
    """Which findings make the exit code 1."""

    ERROR = "error"
    WARNING = "warning"
    NEVER = "never"


@dataclass(frozen=True, kw_only=True)
class RehearsalOptions(WhatIfOptions):
    """The options of every command that rehearses, as typed."""

    needs_time: ClassVar[bool] = True
    """Whether a script without a step time is an error to the command."""

    script: Annotated[
        str,
        typer.Argument(
            help="the launch command, or the training script, or with -m a module",
            show_default=False,
            metavar="COMMAND|SCRIPT",
        ),
    ]
    args: Annotated[list[str] | None, typer.Argument(help="the rest of the command, or the script's arguments")] = None
    nnodes: Annotated[
        str | None, typer.Option("--nnodes", help="number of nodes (default 1); for a range 2:4, the upper end")
    ] = None
    nproc_per_node: Annotated[
        str | None,
        typer.Option("--nproc-per-node", "--nproc_per_node", help="ranks per node (default auto: one per GPU)"),
    ] = None
    cluster: Annotated[str, typer.Option(help="name in the catalogue, or a TOML file")] = "dgx-a100"
    steps: Annotated[int, typer.Option(min=1, help="stop after this many steps")] = 3
    ranks: Annotated[str, typer.Option(help="ranks to capture: auto, all, or a list 0,7,12")] = "auto"
    out: Annotated[Path, typer.Option(help="directory for the trace and the report")] = DEFAULT_OUT
    max_operators: Annotated[int, typer.Option(min=1, help="stop a rank after this many operators without a step")] = (
        1_000_000
    )
    share_imports: Annotated[
        bool, typer.Option(help="import the script's libraries once for all ranks after the first, where that is safe")
    ] = True
    without: Annotated[
        list[str] | None,
        typer.Option(help="a package to leave missing, though there is a replacement; may be given several times"),
    ] = None
    costs: Annotated[
        Path | None,
        typer.Option(help="a Python file that describes kernels with sandtable.cost, run before the script"),
    ] = None
    step_marker: Annotated[
        str, typer.Option(help="module:function whose returns end the steps, such as __main__:train_step")
    ] = ""
    skip_steps: Annotated[
        int, typer.Option(min=1, help="how many of the steps come before those that are timed, such as a warm-up")
    ] = 1
    routing: Annotated[
        str,
        typer.Option(
            help="tokens per expert of a mixture of experts: balanced, zipf:1.2, or a JSON or CSV file with a weight "
            "per expert, optionally per layer"
        ),
    ] = "balanced"
    module: Annotated[bool, typer.Option("--module", "-m", help="SCRIPT is the name of a module")] = False
    epochs: Annotated[
        int,
        typer.Option(
            min=0,
            help="after the captured steps, follow the data loaders to the end of this many epochs, without records "
            "(default: for a few seconds)",
            show_default=False,
            rich_help_panel=_FINDINGS,
        ),
    ] = 0
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="RULE", help="silence the findings of a rule (repeatable)", rich_help_panel=_FINDINGS),
    ] = None
    sarif: Annotated[
        Path | None, typer.Option(help="write the findings as SARIF, too, for editors", rich_help_panel=_FINDINGS)
    ] = None

    @property
    def num_nodes(self) -> int | None:
        return None if self.nnodes is None else parse_nnodes(self.nnodes)

    @property
    def ranks_per_node(self) -> int | None:
        return None if self.nproc_per_node is None else parse_nproc_per_node(self.nproc_per_node)

    @property
    def chosen_ranks(self) -> Literal["auto", "all"] | tuple[int, ...]:
        if self.ranks == "auto":
            return "auto"
        if self.ranks == "all":
            return "all"
        return parse_ranks(self.ranks, example="auto, all or a list such as 0,7,12")

    @property
    def inputs(self) -> UserInputs:
        return UserInputs(ignored_rules=tuple(self.ignore or ()), needs_time=self.needs_time)

    @property
    def launch(self) -> LaunchOptions:
        """How to start the script, without what only one command has."""
        return LaunchOptions(
            ranks_per_node=self.ranks_per_node,
            ranks=self.chosen_ranks,
            is_module=self.module,
            max_operators=self.max_operators,
            share_imports=self.share_imports,
            without=tuple(self.without or ()),
            costs=self.costs or "",
            step_marker=self.step_marker,
            skip_steps=self.skip_steps,
            routing=self.routing,
            num_epochs=self.epochs,
            command=("sandtable", *sys.argv[1:]),
        )


def rehearse_as_typed(options: RehearsalOptions, launch: LaunchOptions) -> Rehearsal:
    """Rehearse the command or the script, and write the SARIF file if there shall be one."""
    words = (options.script, *(options.args or ()))
    is_command = not options.module and is_launch_command(options.script)
    if options.sarif is not None:
        require_writable(options.sarif.parent, is_page=False)
    with TerminalListener() as listen:
        start = partial(rehearse_command, words) if is_command else partial(rehearse, *words)
        rehearsal = start(
            cluster=options.cluster,
            nodes=options.num_nodes if is_command else options.num_nodes or 1,
            steps=options.steps,
            out=options.out,
            inputs=options.inputs,
            what_if=options.what_if,
            options=replace(launch, listen=listen),
        )
    if options.sarif is not None:
        write_sarif(rehearsal.summary, options.sarif)
    return rehearsal


def is_bad(rehearsal: Rehearsal, fail_on: FailOn) -> bool:
    """Return whether a finding is as bad as the user cares for."""
    bad = {FailOn.ERROR: {Severity.ERROR}, FailOn.WARNING: {Severity.ERROR, Severity.WARNING}, FailOn.NEVER: set()}
    return any(finding.severity in bad[fail_on] for finding in rehearsal.findings)


def print_traceback(rehearsal: Rehearsal, console: Console) -> None:
    """Print the traceback of the script, if that is what ended the run."""
    if isinstance(rehearsal.error, ScriptError):
        text = rehearsal.error.traceback.strip("\n")
        console.print(text, style="red", highlight=False, markup=False, soft_wrap=True)
