"""`sandtable profile` and `sandtable partition`: time a model layer by layer, and split it over machines."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console

from sandtable.errors import LaunchError, PlanError
from sandtable.pipeline_profile import ProfileRequest
from sandtable.planner import Level, partition, partition_json, predict_profile, print_partition, read_profile
from sandtable.report.profile import print_profile
from sandtable.report.progress import TerminalListener
from sandtable.units import parse_bytes, parse_rate

__all__ = ["partition_command", "profile_command", "register"]

_PROFILE_HELP = """Time every layer of a model, forward and backward, and write a profile for `sandtable partition`.

MODULE:FUNCTION returns the model, or a tuple of the model, its inputs, and the loss as a function of the model's
result. Without --cluster, layers are timed on this machine. With --cluster they run on one virtual GPU of that
cluster, and the times are predicted: a profile for a card you do not have.

Examples:

  sandtable profile models:vgg16 --input 64,3,224,224 --out profile.json

  sandtable profile models:gpt --input 8,1024:int64:50257 --batches 20 --device cuda

  sandtable profile models:vgg16 --input 64,3,224,224 --cluster dgx-a100 --out a100.json
"""

_PARTITION_HELP = """Split a profiled model over machines so that the slowest stage of the pipeline is fastest.

Prints the stages, how many machines share each (7-1: seven share the first, one has the second; one number is plain
data parallelism), the throughput, minibatches in flight and bytes on the wire, against plain data parallelism.

Examples:

  sandtable partition profile.json --machines 8 --bandwidth 10Gbit

  sandtable partition profile.json --machines 4 --bandwidth 10Gbit --devices 4 --device-bandwidth 100Gbit

  sandtable partition graph.txt --machines 16 --bandwidth 25Gbit --memory 16GiB --json

  sandtable partition profile.json --machines 8 --bandwidth 25Gbit --minibatch-scale 0.25
"""

_WIDE = 160
"""Columns of a file or a pipe."""

T = TypeVar("T")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("profile", help=_PROFILE_HELP, no_args_is_help=True)(profile_command)
    app.command("partition", help=_PARTITION_HELP, no_args_is_help=True)(partition_command)


def profile_command(
    function: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="returns the model", show_default=False)],
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="SHAPE[:TYPE[:BELOW]]", help="an input: 64,3,224,224 (repeatable)"),
    ] = None,
    out: Annotated[Path, typer.Option(help="the file; .txt: as PipeDream's profiler writes it")] = Path("profile.json"),
    batches: Annotated[int, typer.Option(min=1, help="minibatches to time, after one to warm up")] = 10,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda where there is a GPU")] = "auto",
    cluster: Annotated[
        str | None, typer.Option(help="predict for a GPU of this cluster: a name in the catalogue, or a TOML file")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the profile as JSON")] = False,
) -> None:
    """Profile a model and print its layers."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchError(f"--out must be a file that can be written, but {out} cannot: {error}") from error
    if out.is_dir():
        raise LaunchError(
            f"--out must be a file that can be written, but {out} is a directory; for example profile.json"
        )
    request = ProfileRequest(
        function=function,
        inputs=tuple(inputs or ()),
        num_batches=batches,
        device=device,
        show_progress=not as_json,
    )
    if cluster is None:
        from sandtable.methods.pipeline import measure_profile  # imports torch, which takes seconds

        profile = measure_profile(request)
    else:
        with TerminalListener() as listen:
            profile = predict_profile(request, cluster, listen=listen)
    profile.save(out)
    if as_json:
        print(profile.to_json())
    else:
        print_profile(profile, out, _console())


def partition_command(
    profile: Annotated[Path, typer.Argument(help="a file of `sandtable profile`, or a published graph.txt")],
    machines: Annotated[int, typer.Option(min=1, help="number of machines", show_default=False)],
    bandwidth: Annotated[str, typer.Option(help="of each machine's link: 10Gbit, 1.2GB", show_default=False)],
    devices: Annotated[int, typer.Option(min=1, help="devices in a machine")] = 1,
    device_bandwidth: Annotated[
        str | None, typer.Option(help="between devices of a machine: 100Gbit; needed where there are several")
    ] = None,
    memory: Annotated[str | None, typer.Option(help="of a device: 16GiB; without it, memory is no limit")] = None,
    minibatch_scale: Annotated[
        float, typer.Option(help="size of the minibatch over that of the profiled one: 0.25 for 32 images of 128")
    ] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="print the outcome as JSON")] = False,
) -> None:
    """Split a profiled model and print the stages."""
    levels = [Level(machines=machines, bandwidth_bytes_per_s=_parsed(parse_rate, bandwidth, "--bandwidth"))]
    if devices > 1:
        if device_bandwidth is None:
            raise PlanError(f"{devices} devices in a machine need --device-bandwidth; for example 100Gbit")
        inside = _parsed(parse_rate, device_bandwidth, "--device-bandwidth")
        levels.insert(0, Level(machines=devices, bandwidth_bytes_per_s=inside))
    room = None if memory is None else _parsed(parse_bytes, memory, "--memory")
    chain = read_profile(profile).scaled(minibatch_scale)
    split = partition(chain, levels, memory_bytes=room)
    if as_json:
        print(partition_json(chain, levels, split))
    else:
        print_partition(chain, levels, split, _console())


def _parsed(parse: Callable[[str], T], text: str, option: str) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise PlanError(f"{option} {error}") from error


def _console() -> Console:
    return Console() if sys.stdout.isatty() else Console(width=_WIDE)
