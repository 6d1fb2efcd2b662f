"""A profile on a terminal: the slowest layers, and the sums over all layers."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sandtable.pipeline_profile import LayerProfile, Profile
from sandtable.units import format_bytes, format_seconds

__all__ = ["print_profile"]

_MOST_ROWS = 16


def print_profile(profile: Profile, saved: Path, console: Console) -> None:
    """Print the slowest layers, the sums over all layers, and the file."""
    layers = profile.layers
    shown = sorted(layers, key=lambda layer: layer.seconds, reverse=True)[:_MOST_ROWS]
    how = f"median of {profile.num_batches} minibatches" if profile.basis == "measured" else "predicted"
    console.print(
        f"[bold]{escape(profile.model)}[/bold] on {escape(profile.device)}, inputs "
        f"{escape(', '.join(profile.inputs))}: {len(layers)} layers, {how}",
        highlight=False,
    )
    if len(shown) < len(layers):
        console.print(f"[dim]the {len(shown)} slowest[/dim]", highlight=False)
    console.print(_table(profile, [layer for layer in layers if layer in shown]))
    for path, reason in profile.whole.items():
        console.print(f"module '{escape(path)}' is one layer: {escape(reason)}", style="yellow", highlight=False)
    console.print(f"[dim]wrote[/dim] {saved}", highlight=False, soft_wrap=True)


def _table(profile: Profile, shown: list[LayerProfile]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", show_footer=True, footer_style="bold")
    footers = (
        "all",
        "",
        format_seconds(sum(layer.forward_s for layer in profile.layers)),
        format_seconds(sum(layer.backward_s for layer in profile.layers)),
        "",
        format_bytes(sum(layer.weight_bytes for layer in profile.layers)),
    )
    for name, footer in zip(("layer", "kind", "forward", "backward", "output", "weights"), footers, strict=True):
        table.add_column(name, footer, justify="left" if name in ("layer", "kind") else "right")
    for layer in shown:
        table.add_row(
            escape(layer.name),
            escape(layer.kind),
            format_seconds(layer.forward_s),
            format_seconds(layer.backward_s),
            format_bytes(layer.activation_bytes),
            format_bytes(layer.weight_bytes),
        )
    return table
