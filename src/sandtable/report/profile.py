"""A profile on a terminal: the layers that take longest, and what all of them come to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sandtable.units import format_bytes, format_seconds

__all__ = ["print_profile"]

_MOST_ROWS = 16


def print_profile(profile: Mapping[str, Any], saved: Path, console: Console) -> None:
    """`profile` is what its file has."""
    layers = profile["layers"]
    shown = sorted(layers, key=_seconds, reverse=True)[:_MOST_ROWS]
    how = f"median of {profile['num_batches']} minibatches" if profile["basis"] == "measured" else "predicted"
    console.print(
        f"[bold]{escape(profile['model'])}[/bold] on {escape(profile['device'])}, inputs "
        f"{escape(', '.join(profile['inputs']))}: {len(layers)} layers, {how}",
        highlight=False,
    )
    if len(shown) < len(layers):
        console.print(f"[dim]the {len(shown)} that take longest[/dim]", highlight=False)
    table = Table(box=None, pad_edge=False, header_style="dim", show_footer=True, footer_style="bold")
    total = [sum(each[name] for each in layers) for name in ("forward_s", "backward_s")]
    weights = format_bytes(sum(each["weight_bytes"] for each in layers))
    footers = ("all", "", *map(format_seconds, total), "", weights)
    for name, footer in zip(("layer", "kind", "forward", "backward", "hands on", "weights"), footers, strict=True):
        table.add_column(name, footer, justify="left" if name in ("layer", "kind") else "right")
    for each in (layer for layer in layers if layer in shown):
        table.add_row(
            escape(each["name"]),
            escape(each["kind"]),
            format_seconds(each["forward_s"]),
            format_seconds(each["backward_s"]),
            format_bytes(each["activation_bytes"]),
            format_bytes(each["weight_bytes"]),
        )
    console.print(table)
    for path, reason in profile["whole"].items():
        console.print(f"module '{escape(path)}' is one layer: {escape(reason)}", style="yellow", highlight=False)
    console.print(f"[dim]wrote[/dim] {saved}", highlight=False, soft_wrap=True)


def _seconds(layer: Mapping[str, Any]) -> float:
    return float(layer["forward_s"] + layer["backward_s"])
