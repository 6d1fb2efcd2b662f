"""The split of a pipeline on a terminal, and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from math import isinf
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sandtable.plan import Chain, Level, Partition, Stage
from sandtable.units import GBIT_BYTES, format_bytes, format_seconds

__all__ = ["partition_data", "print_partition"]


def partition_data(chain: Chain, levels: Sequence[Level], found: Partition) -> dict[str, Any]:
    """Everything that is printed, and more; `boundaries` and `replicas` are what a pipeline is made with."""
    return {
        "shape": found.name,
        "boundaries": [stage.first for stage in found.stages[1:]],
        "replicas": [stage.replicas for stage in found.stages],
        "machines": [level.machines for level in levels],
        "bandwidth_bytes_per_s": [level.bandwidth_bytes_per_s for level in levels],
        "minibatches_per_s": _finite(found.minibatches_per_s),
        "seconds_per_minibatch": found.seconds_per_minibatch,
        "bytes_per_minibatch": found.bytes_per_minibatch,
        "in_flight": found.in_flight,
        "single_seconds": _finite(found.single_seconds),
        "data_parallel_seconds": found.data_parallel_seconds,
        "data_parallel_bytes": found.data_parallel_bytes,
        "stages": [_stage_data(chain, found, number) for number in range(len(found.stages))],
    }


def _finite(value: float) -> float | None:
    """JSON has no word for what is infinite: nothing to compute, or layers that do not fit into one machine."""
    return None if isinf(value) else value


def print_partition(chain: Chain, levels: Sequence[Level], found: Partition, console: Console) -> None:
    """The stages one a line, then what they are worth against plain data parallelism."""
    console.print(
        f"[dim]{len(chain)} layers, {format_bytes(chain.weight_bytes)} of weights, "
        f"{format_seconds(chain.seconds)} a minibatch on one device; {_machines(levels)}[/dim]",
        highlight=False,
    )
    shape = "plain data parallelism" if found.is_data_parallel else "machines by stage"
    console.print(f"[bold]{found.name}[/bold] ({shape})\n", highlight=False)
    console.print(_table(chain, found))
    console.print()
    console.print(_facts(found), highlight=False)


def _stage_data(chain: Chain, found: Partition, number: int) -> dict[str, Any]:
    stage = found.stages[number]
    return {
        "first": stage.first,
        "last": stage.last,
        "layers": [layer.name for layer in chain.layers[stage.first : stage.last + 1]],
        "replicas": stage.replicas,
        "seconds": stage.seconds,
        "weight_bytes": _weights(chain, stage),
        "bytes_to_next": chain.cut_bytes[stage.last],
        "versions": found.versions(number),
        "inside": stage.inside.name if stage.inside else None,
    }


def _machines(levels: Sequence[Level]) -> str:
    *inner, outer = levels
    text = f"{outer.machines} machines with {outer.bandwidth_bytes_per_s / GBIT_BYTES:g} Gbit/s each"
    for level in reversed(inner):
        text += f", {level.machines} devices in each with {level.bandwidth_bytes_per_s / GBIT_BYTES:g} Gbit/s"
    return text


def _table(chain: Chain, found: Partition) -> Table:
    has_devices = any(stage.inside for stage in found.stages)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("stage", "machines", *(["inside each"] if has_devices else []), "layers"):
        table.add_column(name)
    for name in ("a minibatch", "weights", "to the next", "versions"):
        table.add_column(name, justify="right", no_wrap=True)
    for number, stage in enumerate(found.stages):
        inside = [stage.inside.name if stage.inside else "1"] if has_devices else []
        table.add_row(
            str(number),
            str(stage.replicas),
            *inside,
            escape(_layers(chain, stage)),
            format_seconds(stage.seconds),
            format_bytes(_weights(chain, stage)),
            format_bytes(chain.cut_bytes[stage.last]) if number + 1 < len(found.stages) else "",
            str(found.versions(number)),
        )
    return table


def _facts(found: Partition) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    for _ in range(2):
        table.add_column(justify="right", no_wrap=True)
    table.add_column()
    table.add_row("", found.name, "data parallel", "", style="dim")
    faster = found.data_parallel_seconds / found.seconds_per_minibatch if found.seconds_per_minibatch else 1.0
    table.add_row(
        "a minibatch",
        format_seconds(found.seconds_per_minibatch),
        format_seconds(found.data_parallel_seconds),
        f"{faster:.2f} times as fast" if not found.is_data_parallel else "",
    )
    table.add_row(
        "minibatches a second",
        f"{found.minibatches_per_s:.3g}",
        f"{1 / found.data_parallel_seconds:.3g}" if found.data_parallel_seconds else "",
        f"one machine {1 / found.single_seconds:.3g}"
        if found.single_seconds and not isinf(found.single_seconds)
        else "",
    )
    fewer = 1 - found.bytes_per_minibatch / found.data_parallel_bytes if found.data_parallel_bytes else 0.0
    table.add_row(
        "bytes a minibatch",
        format_bytes(round(found.bytes_per_minibatch)),
        format_bytes(round(found.data_parallel_bytes)),
        f"{abs(fewer):.1%} {'fewer' if fewer > 0 else 'more'}" if not found.is_data_parallel else "",
    )
    table.add_row("in flight", str(found.in_flight), "1", "minibatches an input device has under way")
    return table


def _layers(chain: Chain, stage: Stage) -> str:
    first, last = chain.layers[stage.first].name, chain.layers[stage.last].name
    return first if stage.first == stage.last else f"{first} … {last} ({stage.last - stage.first + 1})"


def _weights(chain: Chain, stage: Stage) -> int:
    return sum(layer.weight_bytes for layer in chain.layers[stage.first : stage.last + 1])
