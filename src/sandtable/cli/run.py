"""`sandtable run`: rehearse a launch command, or a script with the flags of torchrun."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from sandtable.cli.options import Command, WhatIfOptions, parse_ranks
from sandtable.cli.torchrun import ignored_options
from sandtable.errors import ScriptError
from sandtable.launch import is_launch_command, parse_nnodes, parse_nproc_per_node
from sandtable.rehearsal import LaunchOptions, Rehearsal, rehearse, rehearse_command
from sandtable.report import UserInputs, files_in, print_failure, print_outcome, print_summary
from sandtable.report.progress import TerminalListener

__all__ = ["DEFAULT_OUT", "RunOptions", "print_rehearsal", "register", "run"]

DEFAULT_OUT = Path("sandtable-out")

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
class RunOptions(WhatIfOptions):
    """The options of `sandtable run`, as typed."""

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
    tokens_per_step: Annotated[int | None, typer.Option(min=1, help="tokens per step, for tokens per second")] = None
    samples_per_step: Annotated[int | None, typer.Option(min=1, help="samples per step, for samples per second")] = None
    price: Annotated[float | None, typer.Option(min=0.0, help="US dollars per GPU-hour")] = None
    chakra: Annotated[bool, typer.Option("--chakra", help="write Chakra execution traces, too")] = False

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
        return UserInputs(
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
    words = (options.script, *(options.args or ()))
    is_command = not options.module and is_launch_command(options.script)
    with TerminalListener() as listen:
        start = partial(rehearse_command, words) if is_command else partial(rehearse, *words)
        rehearsal = start(
            cluster=options.cluster,
            nodes=options.num_nodes if is_command else options.num_nodes or 1,
            steps=options.steps,
            out=options.out,
            inputs=options.inputs,
            what_if=options.what_if,
            options=LaunchOptions(
                ranks_per_node=options.ranks_per_node,
                ranks=options.chosen_ranks,
                is_module=options.module,
                max_operators=options.max_operators,
                share_imports=options.share_imports,
                without=tuple(options.without or ()),
                costs=options.costs or "",
                step_marker=options.step_marker,
                skip_steps=options.skip_steps,
                routing=options.routing,
                command=("sandtable", *sys.argv[1:]),
                chakra=options.chakra,
                listen=listen,
            ),
        )
    print_rehearsal(rehearsal, Console(), out=options.out)


def print_rehearsal(rehearsal: Rehearsal, console: Console, *, out: Path) -> None:
    """Print the outcome of a rehearsal; one that failed is printed to standard error and ends the command."""
    files, error = files_in(out), rehearsal.error
    if rehearsal.has_time:
        print_outcome(rehearsal.summary, console, files=files)
    elif error is not None:
        errors = Console(stderr=True)
        if isinstance(error, ScriptError):
            errors.print(error.traceback.strip("\n"), style="red", highlight=False, markup=False, soft_wrap=True)
        print_failure(rehearsal.summary, errors, files=files)
        raise typer.Exit(error.exit_code)
    else:
        print_summary(rehearsal.summary.capture, console, saved=files["trace"])
