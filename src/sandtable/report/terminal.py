"""The summary of a capture on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from sandtable.findings import place_text
from sandtable.report.source_lines import shorten_path
from sandtable.trace import MISSING_PACKAGE, CaptureSummary, ClassSummary, NoteSummary
from sandtable.units import format_bytes, format_count, format_flops, format_seconds

__all__ = ["print_notes", "print_summary"]

_MAX_CLASSES = 20
_MAX_NOTES = 8
_MAX_PLACES = 3
"""Lines named in a note, where several have the same one."""
_MAX_SYNCS = 5


def print_summary(summary: CaptureSummary, console: Console, *, saved: Path | None = None) -> None:
    """Print the job, its classes of ranks, the traffic of one rank of each, where hosts wait, and notes."""
    _print_job(summary, console)
    console.print(Padding(_class_table(summary), (1, 0, 0, 0)))
    if any(row.traffic for row in summary.classes):
        console.print(Padding(_traffic_table(summary), (1, 0, 0, 0)))
    _print_syncs(summary, console)
    print_notes(summary.notes, console)
    if saved is not None:
        console.print(f"\n[dim]trace[/dim] {saved}", highlight=False)


def _print_job(summary: CaptureSummary, console: Console) -> None:
    ran = len(summary.captured_ranks)
    step = f"{format_flops(summary.flops_per_step)} per step" if summary.num_steps else "no optimizer step"
    console.print(
        f"\n[bold]{_plural(summary.world_size, 'rank', 'ranks')}[/bold] on {summary.cluster}, "
        f"{summary.gpus_per_node} GPUs per node: "
        f"{_plural(len(summary.classes), 'class', 'classes')} of equal ranks, "
        f"{_plural(ran, 'rank', 'ranks')} captured",
        highlight=False,
    )
    console.print(
        f"{_plural(summary.num_steps, 'step', 'steps')}, {format_count(summary.operators_total)} operators in all "
        f"({format_count(summary.operators_captured)} recorded), {step}",
        highlight=False,
    )
    console.print(
        f"captured in {format_seconds(summary.wall_seconds)}, {format_seconds(summary.core_seconds)} of core time, "
        f"at most {format_bytes(summary.peak_rss_bytes)} of memory",
        highlight=False,
    )


def _class_table(summary: CaptureSummary) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", title_justify="left")
    table.add_column("ranks", no_wrap=True)
    for name in ("", "ops/step", "FLOPs/step", "allocated", "reserved", "of card"):
        table.add_column(name, justify="right", no_wrap=True)
    shown = summary.classes[:_MAX_CLASSES]
    for row in shown:
        table.add_row(*_class_cells(row))
    if len(shown) < len(summary.classes):
        table.add_row(f"... {len(summary.classes) - len(shown)} more", *[""] * 6)
    return table


def _class_cells(row: ClassSummary) -> tuple[str, ...]:
    memory = row.memory
    share = memory.reserved_bytes / memory.capacity_bytes if memory.capacity_bytes else 0.0
    style = "red" if share > 0.95 else "yellow" if share > 0.85 else "green"
    return (
        row.ranks,
        f"×{row.num_ranks:,}" if row.num_ranks > 1 else "",
        format_count(row.operators_per_step),
        format_flops(row.flops_per_step),
        format_bytes(memory.allocated_bytes),
        format_bytes(memory.reserved_bytes),
        f"[{style}]{share:.0%}[/{style}]",
    )


def _traffic_table(summary: CaptureSummary) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("per step and rank", no_wrap=True)
    table.add_column("group", no_wrap=True)
    for name in ("calls", "bytes in", "bytes out"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("on", no_wrap=True)
    rows: dict[tuple[str, str, int, int, int, int], list[str]] = {}
    for rank_class in summary.classes:
        for row in rank_class.traffic:
            key = (row.op, row.group_name, row.group_size, row.num_calls, row.bytes_in, row.bytes_out)
            rows.setdefault(key, []).append(str(rank_class.representative))
    for (op, name, size, calls, bytes_in, bytes_out), ranks in list(rows.items())[:_MAX_CLASSES]:
        is_all = len(ranks) == len(summary.classes)
        shown = "all" if is_all else f"rank {ranks[0]}" + (f", {len(ranks) - 1} more" if ranks[1:] else "")
        table.add_row(op, f"{name}, {size}", f"{calls:,}", format_bytes(bytes_in), format_bytes(bytes_out), shown)
    if len(rows) > _MAX_CLASSES:
        table.add_row(f"... {len(rows) - _MAX_CLASSES} more", "", "", "", "", "")
    return table


def _print_syncs(summary: CaptureSummary, console: Console) -> None:
    if not summary.sync_points:
        return
    console.print("\n[dim]hosts wait for their device at[/dim]")
    for point in summary.sync_points[:_MAX_SYNCS]:
        place = f"{place_text(shorten_path(point.file), point.line)} ({point.function})"
        count = f"{_plural(point.num_syncs, 'time', 'times')} on {_plural(point.num_ranks, 'rank', 'ranks')}"
        console.print(f"  {place}: {point.kind.lower()}, {count}", highlight=False, markup=False)


def print_notes(notes: Sequence[NoteSummary], console: Console, *, max_notes: int = _MAX_NOTES) -> None:
    """Print what the user should know about the capture; the same note of several lines once."""
    if not notes:
        return
    console.print("\n[dim]notes[/dim]")
    places: dict[tuple[str, str], list[str]] = {}
    for note in _with_packages_together(notes):
        where = places.setdefault((note.kind, note.text), [])
        if note.file:
            where.append(place_text(shorten_path(note.file), note.line))
    for (kind, text), where in list(places.items())[:max_notes]:
        more = f" and {len(where) - _MAX_PLACES} more" if len(where) > _MAX_PLACES else ""
        place = f" ({', '.join(where[:_MAX_PLACES])}{more})" if where else ""
        console.print(f"  {kind}: {text}{place}", highlight=False, markup=False)
    if len(places) > max_notes:
        console.print(f"  ... {len(places) - max_notes} more in the trace", highlight=False)


def _with_packages_together(notes: Sequence[NoteSummary]) -> Sequence[NoteSummary]:
    """Return one note for all missing packages, of which one import can find half a dozen, behind the others."""
    missing = [note for note in notes if note.kind == MISSING_PACKAGE]
    if len(missing) < 2:
        return notes
    names = ", ".join(sorted({note.text.partition(" ")[0] for note in missing}))
    text = (
        f"{names} are not installed here: replacements are used as if they were; --without NAME rehearses without one"
    )
    together = replace(missing[0], kind="missing packages", text=text, file="")
    return [*(note for note in notes if note.kind != MISSING_PACKAGE), together]


def _plural(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"
