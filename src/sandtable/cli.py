"""The command line: it parses, calls and prints."""

from __future__ import annotations

import os
import shlex
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from sandtable import __version__, cli_lab, cli_pipeline, cli_report, cli_study, cli_validate
from sandtable import cluster as clusters
from sandtable.cli_options import (
    Jitter,
    LinkScale,
    Price,
    SamplesPerStep,
    Seed,
    SlowNode,
    TokensPerStep,
    what_if,
)
from sandtable.cli_report import Rehearsal, report_run
from sandtable.errors import LaunchError, SandtableError, ScriptError, SimulationError
from sandtable.report import print_summary
from sandtable.report.clusters import print_cluster, print_clusters
from sandtable.report.files import forget_report
from sandtable.report.outcome import print_outcome
from sandtable.report.summary import Asked
from sandtable.trace import Trace, summarise
from sandtable.vgpu import Job, TerminalView, core_path, launch

__all__ = ["app", "main"]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Rehearse a distributed training run on virtual GPUs before you pay for it.",
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"sandtable {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """What concerns no command in particular."""


cluster_app = typer.Typer(no_args_is_help=True, help="What exists: list the catalogue, or show one cluster.")
app.add_typer(cluster_app, name="cluster")

_RUN_HELP = """Run a training script on virtual GPUs, in the place of torchrun.

The script is not edited: it believes it runs on CUDA GPUs with NCCL. Ranks that do the same work are run once.

Examples:

  sandtable run --nproc-per-node 8 train.py --batch-size 32

  sandtable run --cluster dgx-h100 --nnodes 128 --steps 2 train.py --config big.yaml

  sandtable run --nproc-per-node 4 --ranks all -m mypackage.train

  sandtable run --nnodes 32 --slow-node 17=0.8 --link-scale inter=0.5 train.py
"""

_DEFAULT_CLUSTER = "dgx-a100"
_DEFAULT_OUT = Path("sandtable-out")


@app.command(
    help=_RUN_HELP,
    no_args_is_help=True,
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
)
def run(
    script: Annotated[str, typer.Argument(help="the training script, or with -m a module", show_default=False)],
    args: Annotated[list[str] | None, typer.Argument(help="its own arguments")] = None,
    nnodes: Annotated[str, typer.Option("--nnodes", help="number of nodes; of a range 2:4 the most")] = "1",
    nproc_per_node: Annotated[
        str, typer.Option("--nproc-per-node", "--nproc_per_node", help="ranks a node; auto: the node's GPUs")
    ] = "auto",
    cluster: Annotated[str, typer.Option(help="name in the catalogue, or a TOML file")] = _DEFAULT_CLUSTER,
    steps: Annotated[int, typer.Option(min=1, help="stop after this many optimizer steps")] = 3,
    ranks: Annotated[str, typer.Option(help="ranks to really run: auto, all, or a list 0,7,12")] = "auto",
    out: Annotated[Path, typer.Option(help="directory for the trace and the report")] = _DEFAULT_OUT,
    max_operators: Annotated[
        int, typer.Option(min=1, help="stop a rank after this many operators without an optimizer step")
    ] = 1_000_000,
    module: Annotated[bool, typer.Option("--module", "-m", help="the script is a module's name")] = False,
    slow_node: SlowNode = None,
    link_scale: LinkScale = None,
    jitter: Jitter = 0.0,
    seed: Seed = 0,
    tokens_per_step: TokensPerStep = None,
    samples_per_step: SamplesPerStep = None,
    price: Price = None,
    chakra: Annotated[bool, typer.Option("--chakra", help="write Chakra execution traces too")] = False,
    # What follows are torchrun's options that mean nothing without a network: taken, and not looked at.
    standalone: Annotated[bool, typer.Option("--standalone", help="accepted, as torchrun does")] = False,
    rdzv_backend: Annotated[str | None, typer.Option("--rdzv-backend", "--rdzv_backend", hidden=True)] = None,
    rdzv_endpoint: Annotated[str | None, typer.Option("--rdzv-endpoint", "--rdzv_endpoint", hidden=True)] = None,
    rdzv_id: Annotated[str | None, typer.Option("--rdzv-id", "--rdzv_id", hidden=True)] = None,
    rdzv_conf: Annotated[str | None, typer.Option("--rdzv-conf", "--rdzv_conf", hidden=True)] = None,
    max_restarts: Annotated[str | None, typer.Option("--max-restarts", "--max_restarts", hidden=True)] = None,
    monitor_interval: Annotated[
        str | None, typer.Option("--monitor-interval", "--monitor_interval", hidden=True)
    ] = None,
    start_method: Annotated[str | None, typer.Option("--start-method", "--start_method", hidden=True)] = None,
    role: Annotated[str | None, typer.Option("--role", hidden=True)] = None,
    log_dir: Annotated[str | None, typer.Option("--log-dir", "--log_dir", hidden=True)] = None,
    redirects: Annotated[str | None, typer.Option("--redirects", "-r", hidden=True)] = None,
    tee: Annotated[str | None, typer.Option("--tee", "-t", hidden=True)] = None,
    local_ranks_filter: Annotated[
        str | None, typer.Option("--local-ranks-filter", "--local_ranks_filter", hidden=True)
    ] = None,
    node_rank: Annotated[str | None, typer.Option("--node-rank", "--node_rank", hidden=True)] = None,
    master_addr: Annotated[str | None, typer.Option("--master-addr", "--master_addr", hidden=True)] = None,
    master_port: Annotated[str | None, typer.Option("--master-port", "--master_port", hidden=True)] = None,
    local_addr: Annotated[str | None, typer.Option("--local-addr", "--local_addr", hidden=True)] = None,
) -> None:
    num_nodes = _num_nodes(nnodes)
    where = clusters.load(cluster, nodes=num_nodes)
    per_node = _ranks_per_node(nproc_per_node, where.gpus_per_node)
    job = Job(
        script=script,
        script_args=tuple(args or ()),
        is_module=module,
        world_size=num_nodes * per_node,
        nproc_per_node=per_node,
        cluster=where,
        num_steps=steps,
        max_operators=max_operators,
        ranks=_chosen_ranks(ranks),
        core_path=str(core_path()),
        command=("sandtable", *sys.argv[1:]),
    )
    asked = Asked(tokens_per_step=tokens_per_step, samples_per_step=samples_per_step, usd_per_gpu_hour=price)
    changes = what_if(slow_node, link_scale, jitter, seed)
    rehearsal = Rehearsal(cluster=cluster, num_nodes=num_nodes, asked=asked, what_if=changes, chakra=chakra)
    forget_report(out)
    trace = launch(job, view=TerminalView())
    out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(1) as beside:  # to pack the trace takes as long as to work out what it means
        saving = beside.submit(trace.save, out)
        _tell(trace, rehearsal, out, is_whole=job.ranks in ("auto", "all"))
        saving.result()


def _tell(trace: Trace, rehearsal: Rehearsal, out: Path, *, is_whole: bool) -> None:
    """Print what came of a run, and write its report if there is a step to time."""
    console = Console()
    if not (is_whole and len(trace.signatures)):
        # Nobody can tell when the ranks that were left out come to a meeting, nor how long nothing takes.
        print_summary(summarise(trace), console, saved=out / "trace.sandtable")
        return
    try:
        report = report_run(trace, rehearsal, out)
    except SimulationError:
        print_summary(summarise(trace), console, saved=out / "trace.sandtable")
        raise
    print_outcome(report.summary, console, files=report.files)


@app.command()
def show(path: Annotated[Path, typer.Argument(help="a trace, or the directory of a run")] = _DEFAULT_OUT) -> None:
    """Print what was captured: operators, memory, traffic by group, where hosts wait.

    Example: sandtable show sandtable-out
    """
    trace = Trace.load(path)
    console = Console()
    console.print(f"[dim]{shlex.join(trace.command)}[/dim]", highlight=False)
    print_summary(summarise(trace), console)


@cluster_app.command("list")
def list_clusters() -> None:
    """List the machines of the catalogue.

    Example: sandtable cluster list
    """
    print_clusters([clusters.load(name) for name in clusters.names()], clusters.network_names(), Console())


@cluster_app.command("show")
def show_cluster(
    name: Annotated[str, typer.Argument(help="a machine, with a network such as rtx4090+25gbe, or a TOML file")],
    nnodes: Annotated[int | None, typer.Option("--nnodes", min=1, help="number of nodes")] = None,
) -> None:
    """Show a cluster: devices, links with units, status and source, price, and a picture of the topology.

    Example: sandtable cluster show dgx-h100 --nnodes 64
    """
    print_cluster(clusters.load(name, nodes=nnodes), Console())


cli_lab.register(app)
cli_study.register(app)
cli_pipeline.register(app)
cli_validate.register(app)
cli_report.register(app)


def main() -> None:
    """Entry point: user errors are one clean message and exit code 1; Ctrl-C is 130."""
    console = Console(stderr=True)
    try:
        app()
    except ScriptError as error:
        console.print(str(error), style="red", highlight=False, markup=False, soft_wrap=True)
        sys.exit(1)
    except SandtableError as error:
        console.print(f"sandtable: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        console.print("sandtable: stopped")
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _num_nodes(text: str) -> int:
    last = text.split(":")[-1]
    if not last.isdigit() or int(last) < 1:
        raise LaunchError(f"--nnodes must be a number or a range such as 2:4, but got '{text}'; give a positive number")
    return int(last)


def _ranks_per_node(text: str, gpus: int) -> int:
    if text in ("auto", "gpu"):
        return gpus
    if not text.isdigit() or int(text) < 1:
        raise LaunchError(
            f"--nproc-per-node must be a number, auto or gpu, but got '{text}'; a node of this cluster has {gpus} GPUs"
        )
    return int(text)


def _chosen_ranks(text: str) -> Literal["auto", "all"] | tuple[int, ...]:
    if text == "auto":
        return "auto"
    if text == "all":
        return "all"
    parts = text.split(",")
    if not all(part.strip().isdigit() for part in parts):
        raise LaunchError(f"--ranks must be auto, all or a list such as 0,7,12, but got '{text}'")
    return tuple(int(part) for part in parts)
