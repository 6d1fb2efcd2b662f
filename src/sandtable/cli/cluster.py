"""`sandtable cluster`: what exists."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from sandtable import cluster as clusters
from sandtable.report.clusters import print_cluster, print_clusters

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    commands = typer.Typer(no_args_is_help=True, help="List the machines of the catalogue, or show one cluster.")
    commands.command("list")(list_clusters)
    commands.command("show")(show_cluster)
    app.add_typer(commands, name="cluster")


def list_clusters() -> None:
    """List the machines of the catalogue.

    Example: sandtable cluster list
    """
    print_clusters([clusters.load(name) for name in clusters.names()], clusters.network_names(), Console())


def show_cluster(
    name: Annotated[str, typer.Argument(help="a machine, with a network such as rtx4090+25gbe, or a TOML file")],
    nnodes: Annotated[int | None, typer.Option("--nnodes", min=1, help="number of nodes")] = None,
) -> None:
    """Show a cluster: devices, links with units, status and source, price, and a picture of the topology.

    Example: sandtable cluster show dgx-h100 --nnodes 64
    """
    print_cluster(clusters.load(name, nodes=nnodes), Console())
