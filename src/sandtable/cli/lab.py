"""`sandtable lab` and `sandtable calibrate`: run a command on a cluster made of this machine, and measure one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sandtable import cluster as clusters
from sandtable.lab import Calibration, Lab
from sandtable.rehearsal import calibrate
from sandtable.report.lab import print_lab
from sandtable.trace import Trace
from sandtable.units import format_seconds

__all__ = ["calibrate_command", "lab_command", "register"]

_LAB_HELP = """Run a command on a lab: several hosts on this machine, joined by links as slow as the cluster's.

Needs Linux, root and iproute2. torchrun runs once on every host, one node per host; --nnodes, --node-rank and the
master's address are filled in.

Examples:

  sandtable lab lab -- torchrun --nproc-per-node 1 train.py --steps 10

  sandtable lab slow-links.toml --cores-per-host 0.4 -- torchrun train.py
"""

_CALIBRATE_HELP = """Measure this machine, and with --lab the links of a lab, and write them as a cluster file.

NAME.measured.json, beside the file, holds the time of every operator in --trace.

Examples:

  sandtable calibrate --out this-machine.toml

  sandtable calibrate --lab lab --cores-per-host 0.4 --trace sandtable-out --out calibrated.toml
"""

_Cores = Annotated[
    float, typer.Option("--cores-per-host", min=0.0, help="processors each host may use, such as 0.4; 0: no limit")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("lab", help=_LAB_HELP, no_args_is_help=True)(lab_command)
    app.command("calibrate", help=_CALIBRATE_HELP)(calibrate_command)


def lab_command(
    cluster: Annotated[str, typer.Argument(help="name in the catalogue, or a TOML file; one host per node")],
    command: Annotated[list[str], typer.Argument(help="after --: torchrun and its arguments, or any command")],
    nnodes: Annotated[int | None, typer.Option(min=1, help="use only the first nodes of the cluster")] = None,
    cores_per_host: _Cores = 0.0,
    timeout: Annotated[float | None, typer.Option(min=0.0, help="kill the command after this many seconds")] = None,
) -> None:
    """Run the command and print what the hosts sent."""
    machines = clusters.load(cluster, nodes=nnodes)
    result = Lab(machines, cores=cores_per_host).run(command, timeout_s=timeout)
    print_lab(result, Console())
    raise typer.Exit(result.exit_code)


def calibrate_command(
    out: Annotated[Path, typer.Option(help="the cluster file to write")] = Path("calibrated.toml"),
    lab: Annotated[str | None, typer.Option("--lab", help="cluster whose hosts and links the lab copies")] = None,
    nnodes: Annotated[int | None, typer.Option(min=1, help="use only the first nodes of that cluster")] = None,
    cores_per_host: _Cores = 0.0,
    trace: Annotated[Path | None, typer.Option(help="a run whose operators are measured one by one")] = None,
) -> None:
    """Measure and print what was measured."""
    calibration = calibrate(
        out,
        lab=clusters.load(lab, nodes=nnodes) if lab is not None else None,
        cores_per_host=cores_per_host,
        trace=Trace.load(trace) if trace is not None else None,
    )
    _print_calibration(calibration, out, Console())


def _print_calibration(calibration: Calibration, out: Path, console: Console) -> None:
    console.print(f"{calibration.device.name}: {calibration.device.share:.2f} of its cores", highlight=False)
    console.print(f"{len(calibration.operators)} operators measured", highlight=False)
    if calibration.skipped:
        names = ", ".join(f"{name} ({count})" for name, count in sorted(calibration.skipped.items()))
        console.print(f"not measured, left to the formula: {names}", highlight=False)
    if (links := calibration.links) is not None:
        console.print(
            f"links: a large message reaches {links.message_share:.0%} of the rate, a large all-reduce "
            f"{links.all_reduce_share:.0%}; a small message takes {format_seconds(links.latency_ns / 1e9)}",
            highlight=False,
        )
    console.print(f"[dim]wrote[/dim] {out}", highlight=False)
