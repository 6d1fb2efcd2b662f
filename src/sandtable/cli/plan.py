"""`sandtable plan`: search the launch parameters of a script."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sandtable.cli.options import Command
from sandtable.launch import parse_nnodes, parse_nproc_per_node
from sandtable.planner import Knob, SearchOptions, SearchSpace, plan, plan_json, print_plan
from sandtable.planner.plan_progress import PlanProgress
from sandtable.rehearsal import LaunchOptions
from sandtable.report import UserInputs, require_writable

__all__ = ["PlanOptions", "register"]

_HELP = """Search the launch parameters of a script: the fastest, or the cheapest, that runs and fits.

Write each knob in braces where its value belongs, and give its values with --try. The script is not edited: every
configuration is rehearsed, and what it refuses is rejected with its own reason.

  sandtable plan --nnodes 2 --try tp=1,2,4,8 --try mb=1,2 --where "tp * mb <= 8" train.py --tp {tp} --micro-batch {mb}

  sandtable plan --try nodes=2,4,8 --objective cost --usd-per-gpu-hour 2.5 train.py

  sandtable plan --try zero=1,2,3 --set ds.json:zero_optimization.stage={zero} -- deepspeed train.py --deepspeed ds.json

Braces may hold arithmetic over knobs and the facts world, nodes and gpus_per_node: --dp {world // tp}. The knobs nodes
and cluster are sandtable's own: --try cluster=dgx-a100,dgx-h100.

A search that is stopped goes on where it was when it is started again with the same --out.
"""


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The options of `sandtable plan`, as typed."""

    script: Annotated[
        str,
        typer.Argument(
            help="the launch command, or the training script, with knobs in braces",
            show_default=False,
            metavar="COMMAND|SCRIPT",
        ),
    ]
    args: Annotated[list[str] | None, typer.Argument(help="the rest of the command, or the script's arguments")] = None
    knobs: Annotated[
        list[str] | None, typer.Option("--try", metavar="KNOB=VALUES", help="values to try: tp=1,2,4 (repeatable)")
    ] = None
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="CONDITION", help="what a configuration must meet: 'tp * pp <= world' (repeatable)"),
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FILE:KEY=VALUE", help="a key of a JSON, YAML or TOML file (repeatable)"),
    ] = None
    objective: Annotated[
        list[str] | None,
        typer.Option(help="time, throughput, cost, memory or gpus; several make a Pareto front (repeatable)"),
    ] = None
    tokens_per_step: Annotated[
        str, typer.Option(metavar="NUMBER", help="tokens per step, also as an expression over knobs: 'mb * 2048'")
    ] = ""
    usd_per_gpu_hour: Annotated[float | None, typer.Option(min=0.0, help="the price, if the cluster has none")] = None
    cluster: Annotated[str, typer.Option(help="name in the catalogue, or a TOML file")] = "dgx-a100"
    nnodes: Annotated[str | None, typer.Option("--nnodes", help="number of nodes (default 1)")] = None
    nproc_per_node: Annotated[
        str | None,
        typer.Option("--nproc-per-node", "--nproc_per_node", help="ranks per node (default auto: one per GPU)"),
    ] = None
    module: Annotated[bool, typer.Option("--module", "-m", help="SCRIPT is the name of a module")] = False
    steps: Annotated[int, typer.Option(min=1, help="steps to capture of each configuration")] = 2
    step_marker: Annotated[str, typer.Option(help="module:function whose returns end the steps")] = ""
    jobs: Annotated[int, typer.Option(min=1, help="rehearsals at a time")] = 1
    trials: Annotated[int, typer.Option(min=1, help="configurations to rehearse at most")] = 200
    max_memory: Annotated[float, typer.Option(help="the share of a card's memory that may be reserved")] = 1.0
    seed: Annotated[int, typer.Option(min=0, help="seed of the search, where not all is tried")] = 0
    out: Annotated[Path, typer.Option(help="directory for the results, and for going on")] = Path("sandtable-plan")


def register(app: typer.Typer) -> None:
    """Add the command."""
    Command(name="plan", function=_plan, options=PlanOptions).add_to(
        app,
        help=_HELP,
        no_args_is_help=True,
        context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
    )


def _plan(options: PlanOptions) -> None:
    """Search, print the result, and write it to plan.json."""
    require_writable(options.out, is_page=False)
    console = Console()
    space = SearchSpace(knobs=tuple(map(Knob.parse, options.knobs or ())), conditions=tuple(options.where or ()))
    per_node = options.nproc_per_node
    with PlanProgress() as listen:
        result = plan(
            options.script,
            *(options.args or ()),
            space=space,
            cluster=options.cluster,
            nodes=None if options.nnodes is None else parse_nnodes(options.nnodes),
            inputs=UserInputs(usd_per_gpu_hour=options.usd_per_gpu_hour),
            options=LaunchOptions(
                ranks_per_node=None if per_node is None else parse_nproc_per_node(per_node),
                is_module=options.module,
                step_marker=options.step_marker,
                command=("sandtable", *sys.argv[1:]),
            ),
            search=SearchOptions(
                objectives=tuple(options.objective or ("time",)),
                tokens_per_step=options.tokens_per_step,
                settings=tuple(options.settings or ()),
                steps=options.steps,
                jobs=options.jobs,
                max_trials=options.trials,
                max_memory=options.max_memory,
                seed=options.seed,
                out=options.out,
                listen=listen,
            ),
        )
    path = options.out / "plan.json"
    path.write_text(plan_json(result), encoding="utf-8")
    print_plan(result, console)
    report = f"   full rehearsal of the best {result.report}" if result.report else ""
    console.print(f"\nplan {path}{report}", style="dim", highlight=False, markup=False, soft_wrap=True)
    if result.best is None:
        raise typer.Exit(1)
