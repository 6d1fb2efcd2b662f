"""The commands of the lab: run a command on a cluster made of this machine, and measure what such a cluster does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sandtable import cluster as clusters
from sandtable.engine.compute import MeasuredRow, MeasuredTable
from sandtable.lab import Calibration, Lab, Plan, calibrate, machine_text, plan_for
from sandtable.report.lab import print_lab
from sandtable.trace import Signature, Trace
from sandtable.units import format_seconds

__all__ = ["calibrate_command", "lab_command", "register"]

_LAB_HELP = """Run a command on a lab: several hosts on this machine, joined by links as slow as the cluster's.

Needs Linux, root and iproute2. torchrun is run once on every host, one node a host; --nnodes, --node-rank and the
master's address are filled in.

Examples:

  sandtable lab lab -- torchrun --nproc-per-node 1 train.py --steps 10

  sandtable lab slow-links.toml --cores-per-host 0.4 -- torchrun train.py
"""

_CALIBRATE_HELP = """Measure this machine, and with --lab the links of a lab, and write them as a cluster file.

Beside the file, NAME.measured.json keeps the time of every operator of the trace that was given.

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
    cluster: Annotated[str, typer.Argument(help="name in the catalogue, or a TOML file: one host for each node")],
    command: Annotated[list[str], typer.Argument(help="after --: torchrun and its arguments, or any command")],
    nnodes: Annotated[int | None, typer.Option(min=1, help="the first so many nodes of the cluster")] = None,
    cores_per_host: _Cores = 0.0,
    timeout: Annotated[float | None, typer.Option(min=0.0, help="seconds after which the command is ended")] = None,
) -> None:
    where = clusters.load(cluster, nodes=nnodes)
    result = Lab(where, cores=cores_per_host).run(command, timeout_s=timeout)
    print_lab(result, Console())
    raise typer.Exit(result.exit_code)


def calibrate_command(
    out: Annotated[Path, typer.Option(help="the cluster file to write")] = Path("calibrated.toml"),
    lab: Annotated[str | None, typer.Option("--lab", help="a cluster: measure on hosts and links like its own")] = None,
    nnodes: Annotated[int | None, typer.Option(min=1, help="the first so many nodes of that cluster")] = None,
    cores_per_host: _Cores = 0.0,
    trace: Annotated[Path | None, typer.Option(help="a run whose operators are measured one by one")] = None,
) -> None:
    plan = plan_for(clusters.load(lab, nodes=nnodes), cores=cores_per_host) if lab is not None else None
    signatures = Trace.load(trace).signatures.texts if trace is not None else ()
    found = calibrate(signatures, plan=plan)
    write(found, out=out, plan=plan)
    _print_calibration(found, out, Console())


def write(found: Calibration, *, out: Path, plan: Plan | None) -> Path:
    """The cluster file, and beside it the table of measured operators, whose path is returned."""
    out.write_text(machine_text(found, title=f"Calibrated: {found.device['name']}", plan=plan), encoding="utf-8")
    rows = [MeasuredRow(signature=Signature.parse(row.signature), ns=row.ns) for row in found.operators]
    beside = out.with_suffix(".measured.json")  # where `run` and `report` look for it
    MeasuredTable(rows, device=out.stem, source="sandtable calibrate").save(beside)
    return beside


def _print_calibration(found: Calibration, out: Path, console: Console) -> None:
    console.print(f"{found.device['name']}: {found.device['share']:.2f} of its cores", highlight=False)
    console.print(f"{len(found.operators)} operators measured", highlight=False)
    if found.skipped:
        names = ", ".join(f"{name} ({count})" for name, count in sorted(found.skipped.items()))
        console.print(f"not measured, left to the formula: {names}", highlight=False)
    if found.links is not None:
        console.print(
            f"links: a large message reaches {found.links.message_share:.0%} of the rate, a large all-reduce "
            f"{found.links.all_reduce_share:.0%}; a small message takes {format_seconds(found.links.latency_ns / 1e9)}",
            highlight=False,
        )
    console.print(f"[dim]wrote[/dim] {out}", highlight=False)
