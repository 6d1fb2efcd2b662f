"""The split of a pipeline, as a table on a terminal and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isinf
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sandtable.planner.chain import Chain
from sandtable.planner.partitioner import Level, Partition, Stage
from sandtable.units import GBIT_BYTES, format_bytes, format_seconds

__all__ = ["partition_json", "print_partition"]


def partition_json(chain: Chain, levels: Sequence[Level], split: Partition) -> str:
    """Return all that is printed, and more; a `Pipeline` is built from `boundaries` and `replicas`."""
    data = {
        "shape": split.name,
        "boundaries": [stage.first for stage in split.stages[1:]],
        "replicas": [stage.replicas for stage in split.stages],
        "machines": [level.machines for level in levels],
        "bandwidth_bytes_per_s": [level.bandwidth_bytes_per_s for level in levels],
        "minibatches_per_s": _finite(split.minibatches_per_s),
        "seconds_per_minibatch": split.seconds_per_minibatch,
        "bytes_per_minibatch": split.bytes_per_minibatch,
        "in_flight": split.in_flight,
        "single_seconds": _finite(split.single_seconds),
        "data_parallel_seconds": split.data_parallel_seconds,
        "data_parallel_bytes": split.data_parallel_bytes,
        "stages": [_stage_data(chain, split, number) for number in range(len(split.stages))],
    }
    return json.dumps(data, indent=1)


def _finite(value: float) -> float | None:
    """Return None, which JSON has, for infinity: nothing to compute, or layers that do not fit into one machine."""
    return None if isinf(value) else value


def print_partition(chain: Chain, levels: Sequence[Level], split: Partition, console: Console) -> None:
    """Print one line per stage, then a comparison with plain data parallelism."""
    console.print(
        f"[dim]{len(chain)} layers, {format_bytes(chain.weight_bytes)} of weights, "
        f"{format_seconds(chain.seconds)} per minibatch on one device; {_machines(levels)}[/dim]",
        highlight=False,
    )
    shape = "plain data parallelism" if split.is_data_parallel else "machines by stage"
    console.print(f"[bold]{split.name}[/bold] ({shape})\n", highlight=False)
    console.print(_table(chain, split))
    console.print()
    console.print(_facts(split), highlight=False)


def _stage_data(chain: Chain, split: Partition, number: int) -> dict[str, Any]:
    stage = split.stages[number]
    return {
        "first": stage.first,
        "last": stage.last,
        "layers": [layer.name for layer in chain.layers[stage.first : stage.last + 1]],
        "replicas": stage.replicas,
        "seconds": stage.seconds,
        "weight_bytes": _weights(chain, stage),
        "bytes_to_next": chain.cut_bytes[stage.last],
        "versions": split.versions(number),
        "inside": stage.inside.name if stage.inside else None,
    }


def _machines(levels: Sequence[Level]) -> str:
    *inner, outer = levels
    text = f"{outer.machines} machines with {outer.bandwidth_bytes_per_s / GBIT_BYTES:g} Gbit/s each"
    for level in reversed(inner):
        text += f", {level.machines} devices in each with {level.bandwidth_bytes_per_s / GBIT_BYTES:g} Gbit/s"
    return text


def _table(chain: Chain, split: Partition) -> Table:
    has_devices = any(stage.inside for stage in split.stages)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("stage", "machines", *(["inside each"] if has_devices else []), "layers"):
        table.add_column(name)
    for name in ("per minibatch", "weights", "to the next", "versions"):
        table.add_column(name, justify="right", no_wrap=True)
    for number, stage in enumerate(split.stages):
        inside = [stage.inside.name if stage.inside else "1"] if has_devices else []
        table.add_row(
            str(number),
            str(stage.replicas),
            *inside,
            escape(_layers(chain, stage)),
            format_seconds(stage.seconds),
            format_bytes(_weights(chain, stage)),
            format_bytes(chain.cut_bytes[stage.last]) if number + 1 < len(split.stages) else "",
            str(split.versions(number)),
        )
    return table


def _facts(split: Partition) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    for _ in range(2):
        table.add_column(justify="right", no_wrap=True)
    table.add_column()
    table.add_row("", split.name, "data parallel", "", style="dim")
    faster = split.data_parallel_seconds / split.seconds_per_minibatch if split.seconds_per_minibatch else 1.0
    table.add_row(
        "per minibatch",
        format_seconds(split.seconds_per_minibatch),
        format_seconds(split.data_parallel_seconds),
        f"{faster:.2f} times as fast" if not split.is_data_parallel else "",
    )
    table.add_row(
        "minibatches per second",
        f"{split.minibatches_per_s:.3g}",
        f"{1 / split.data_parallel_seconds:.3g}" if split.data_parallel_seconds else "",
        f"one machine {1 / split.single_seconds:.3g}"
        if split.single_seconds and not isinf(split.single_seconds)
        else "",
    )
    fewer = 1 - split.bytes_per_minibatch / split.data_parallel_bytes if split.data_parallel_bytes else 0.0
    table.add_row(
        "bytes per minibatch",
        format_bytes(round(split.bytes_per_minibatch)),
        format_bytes(round(split.data_parallel_bytes)),
        f"{abs(fewer):.1%} {'fewer' if fewer > 0 else 'more'}" if not split.is_data_parallel else "",
    )
    table.add_row("in flight", str(split.in_flight), "1", "minibatches in flight on an input device")
    return table


def _layers(chain: Chain, stage: Stage) -> str:
    first, last = chain.layers[stage.first].name, chain.layers[stage.last].name
    return first if stage.first == stage.last else f"{first} … {last} ({stage.last - stage.first + 1})"


def _weights(chain: Chain, stage: Stage) -> int:
    return sum(layer.weight_bytes for layer in chain.layers[stage.first : stage.last + 1])
