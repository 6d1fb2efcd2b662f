"""`sandtable run`: rehearse a launch command, or a script with the flags of torchrun."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sandtable.cli.options import Command
from sandtable.cli.rehearsing import DEFAULT_OUT, FailOn, RehearsalOptions, is_bad, print_traceback, rehearse_as_typed
from sandtable.cli.torchrun import ignored_options
from sandtable.rehearsal import Rehearsal
from sandtable.report import UserInputs, files_in, print_failure, print_findings, print_outcome, print_summary

__all__ = ["DEFAULT_OUT", "RunOptions", "print_rehearsal", "register", "run"]

_FIGURES = "Figures"
_FINDINGS = "Findings"

_HELP = """Run a training script on virtual GPUs.

The script needs no edits: it sees CUDA GPUs with NCCL. Ranks that do the same work run only once.

Put `sandtable run --` before the command you type on the cluster. The launcher is read and not started, so it need not
be installed:

  sandtable run -- torchrun --nproc-per-node 8 train.py --batch-size 32

  sandtable run --cluster dgx-h100 -- srun --nodes 128 torchrun --nnodes 128 --nproc-per-node 8 train.py

  sandtable run -- accelerate launch --config_file fsdp.yaml train.py

  sandtable run -- deepspeed --hostfile hosts train.py --deepspeed ds_config.json

  sandtable run -- python -m mypackage.train

Or give the script, or a notebook, with the flags of torchrun; without --nproc-per-node there is one rank per GPU:

  sandtable run --nproc-per-node 8 train.py --batch-size 32

  sandtable run --nproc-per-node 4 --ranks all -m mypackage.train

  sandtable run --nnodes 32 --slow-node 17=0.8 --link-scale inter=0.5 train.ipynb
"""


@dataclass(frozen=True, kw_only=True)
class RunOptions(RehearsalOptions):
    """The options of `sandtable run`, as typed."""

    tokens_per_step: Annotated[
        int | None, typer.Option(min=1, help="tokens per step, for tokens per second", rich_help_panel=_FIGURES)
    ] = None
    samples_per_step: Annotated[
        int | None, typer.Option(min=1, help="samples per step, for samples per second", rich_help_panel=_FIGURES)
    ] = None
    price: Annotated[float | None, typer.Option(min=0.0, help="US dollars per GPU-hour", rich_help_panel=_FIGURES)] = (
        None
    )
    chakra: Annotated[
        bool, typer.Option("--chakra", help="write Chakra execution traces, too", rich_help_panel=_FIGURES)
    ] = False
    no_check: Annotated[
        bool, typer.Option("--no-check", help="do not look for mistakes", rich_help_panel=_FINDINGS)
    ] = False
    fail_on: Annotated[
        FailOn | None,
        typer.Option(help="findings that make the exit code 1 (default: a run that fails)", rich_help_panel=_FINDINGS),
    ] = None

    @property
    def inputs(self) -> UserInputs:
        return replace(
            super().inputs,
            tokens_per_step=self.tokens_per_step,
            samples_per_step=self.samples_per_step,
            usd_per_gpu_hour=self.price,
        )


def register(app: typer.Typer) -> None:
    """Add the command."""
    Command(name="run", function=run, options=RunOptions, ignored=ignored_options()).add_to(
        app,
        help=_HELP,
        no_args_is_help=True,
        context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
    )


def run(options: RunOptions) -> None:
    """Rehearse the command or the script, and print the outcome."""
    launch = replace(options.launch, chakra=options.chakra, checks=not options.no_check)
    rehearsal = rehearse_as_typed(options, launch)
    print_rehearsal(rehearsal, Console(), out=options.out, fail_on=options.fail_on)


def print_rehearsal(rehearsal: Rehearsal, console: Console, *, out: Path, fail_on: FailOn | None = None) -> None:
    """Print the outcome of a rehearsal, a failure to standard error, and end the command if it is bad."""
    files, error = files_in(out), rehearsal.error
    if rehearsal.has_time:
        print_outcome(rehearsal.summary, console, files=files)
    elif error is not None:
        errors = Console(stderr=True)
        print_traceback(rehearsal, errors)
        print_failure(rehearsal.summary, errors, files=files)
    else:
        print_summary(rehearsal.summary.capture, console, saved=files["trace"])
        print_findings(rehearsal.findings, console)
    if fail_on is not None and is_bad(rehearsal, fail_on):
        raise typer.Exit(1)
    if fail_on is None and error is not None:
        raise typer.Exit(error.exit_code)
