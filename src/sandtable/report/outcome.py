"""The outcome of a rehearsal on a terminal: one screen, answers first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sandtable.report.findings import print_findings, print_progress
from sandtable.report.summary import ClassMemory, RunCost, StepSpread, Summary, Timing
from sandtable.report.terminal import print_notes
from sandtable.report.times import PARTS, Parts, RankTimes
from sandtable.trace import NoteSummary
from sandtable.units import format_bytes, format_count, format_flops, format_seconds

__all__ = ["print_failure", "print_outcome"]

_BAR_WIDTH = 60
_MAX_CLASSES = 3
_MAX_NOTES = 4
_SHOWN_HOST_BYTES = 64 << 20
"""Less host memory than this in tensors is not worth a word."""

_SMALL_SHARE = 0.0005
_STEADY_STEPS = 2
_COLOURS = {
    "forward": "blue",
    "backward": "cyan",
    "recompute": "magenta",
    "optimizer": "green",
    "communication": "yellow",
    "bubble": "bright_black",
    "straggler": "red",
    "host": "white",
    "input": "bright_blue",
    "other": "bright_black",
}
_NAMES = {
    "bubble": "pipeline bubble",
    "straggler": "waiting for the slowest",
    "host": "host-bound",
    "input": "input wait",
}


def print_outcome(run: Summary, console: Console, *, files: Mapping[str, Path] | None = None) -> None:
    """Print the step time and where it goes, efficiency, memory, links, cost, findings, notes, and where to read more.

    A run without a step time is printed as by `print_failure`.
    """
    if run.timing is None:
        print_failure(run, console, files=files)
        return
    _print_job(run, console)
    _print_headline(run.timing, console)
    _print_bar("slowest", run.timing.breakdown.slowest, console)
    _print_bar("mean", run.timing.breakdown.mean, console)
    _print_legend(run.timing.breakdown.slowest, console)
    console.print(_facts(run, run.timing))
    print_findings(run.findings, console)
    _print_silenced(run, console)
    print_notes(_other_notes(run), console, max_notes=_MAX_NOTES)
    _print_files(files, console)


def print_failure(run: Summary, console: Console, *, files: Mapping[str, Path] | None = None) -> None:
    """Print why a run has no step time: its findings, then how far each of its ranks got."""
    _print_job(run, console)
    console.print("\n[bold]no step time[/bold]", highlight=False)
    print_findings(run.findings, console)
    _print_silenced(run, console)
    print_progress(run.progress, run.capture.classes, console)
    print_notes(_other_notes(run), console, max_notes=_MAX_NOTES)
    _print_files(files, console)


def _print_silenced(run: Summary, console: Console) -> None:
    if run.silenced:
        rules = ", ".join(dict.fromkeys(finding.rule for finding in run.silenced))
        console.print(
            f"\n[dim]{_plural(len(run.silenced), 'finding', 'findings')} silenced: {rules}[/dim]", highlight=False
        )


def _other_notes(run: Summary) -> list[NoteSummary]:
    """Return the notes that no finding and no row of progress repeats."""
    known = {finding.rule for finding in run.findings} | {"skipped-updates"}
    known |= {"fewer-steps"} if run.timing is None else set()
    return [note for note in run.capture.notes if note.kind.replace(" ", "-") not in known]


def _print_files(files: Mapping[str, Path] | None, console: Console) -> None:
    if files:
        shown = "  ".join(f"{name} {path}" for name, path in files.items())
        console.print(f"\n{shown}", style="dim", highlight=False, markup=False, soft_wrap=True)


def _print_job(run: Summary, console: Console) -> None:
    capture = run.capture
    devices = ", ".join(f"{device.num_ranks:,} × {device.name}" for device in run.cluster.devices)
    console.print(
        f"\n[bold]{_plural(run.world_size, 'rank', 'ranks')}[/bold] on {escape(run.cluster.title)}: {escape(devices)}; "
        f"{_plural(len(capture.classes), 'class', 'classes')} of equal ranks, "
        f"{_plural(len(capture.captured_ranks), 'rank', 'ranks')} captured",
        highlight=False,
    )


def _print_headline(run: Timing, console: Console) -> None:
    words = [f"[bold]{format_seconds(run.step_seconds)}[/bold] per step{_spread(run.steps)}"]
    efficiency = run.efficiency
    if efficiency.mfu is not None:
        again = f", HFU {efficiency.hfu:.1%}" if efficiency.hardware_flops != efficiency.model_flops else ""
        words.append(f"MFU [bold]{efficiency.mfu:.1%}[/bold]{again} of {efficiency.dtype}")
    words.append(f"{format_flops(efficiency.model_flops_per_s_per_device)}/s per GPU")
    if run.throughput and run.throughput.tokens_per_s is not None:
        words.append(f"{format_count(round(run.throughput.tokens_per_s))} tokens/s")
    if run.throughput and run.throughput.samples_per_s is not None:
        words.append(f"{run.throughput.samples_per_s:,.1f} samples/s")
    console.print("\n" + "   ".join(words), highlight=False)


def _spread(steps: StepSpread) -> str:
    """Return how the steps differ, where they do."""
    if steps.is_uniform:
        return ""
    return (
        f" (median of {steps.num_timed}: {format_seconds(steps.fastest_seconds)} to "
        f"{format_seconds(steps.slowest_seconds)}; step {steps.described} is described)"
    )


def _print_bar(name: str, times: RankTimes, console: Console) -> None:
    """Print a bar whose pieces add up to its whole length: each part gets the cells between two rounded borders."""
    bar = Text(f"{name:8}")
    total = times.parts.total or 1.0
    end = cells = 0.0
    for part, seconds in _amounts(times.parts):
        end += seconds
        width = round(end / total * _BAR_WIDTH) - cells
        cells += max(width, 0)
        bar.append("█" * int(max(width, 0)), style=_COLOURS[part])
    who = f"  rank {times.rank}" if times.rank is not None else "  all ranks"
    bar.append(who, style="dim")
    console.print(bar)


def _print_legend(times: RankTimes, console: Console) -> None:
    total = times.parts.total or 1.0
    lines = [Text(" " * 8)]
    for part, seconds in _amounts(times.parts):
        if seconds / total < _SMALL_SHARE:
            continue
        item = Text.assemble(("■ ", _COLOURS[part]), f"{_NAMES.get(part, part)} {seconds / total:.1%}   ")
        if part == "communication":
            item = Text.assemble(item[:-3], (f" ({_axes(times.parts, total)})   ", "dim"))
        if lines[-1].cell_len + item.cell_len > console.width + 3:
            lines.append(Text(" " * 8))
        lines[-1].append_text(item)
    for line in lines:
        console.print(line, highlight=False)


def _axes(parts: Parts, total: float) -> str:
    axes = sorted(parts.communication.items(), key=lambda item: -item[1])
    return ", ".join(f"{axis or 'world'} {value / total:.1%}" for axis, value in axes if value / total >= _SMALL_SHARE)


def _amounts(parts: Parts) -> list[tuple[str, float]]:
    values = {name: getattr(parts, name) for name in PARTS} | {"other": parts.other}
    values["communication"] = sum(parts.communication.values())
    return [(name, max(seconds, 0.0)) for name, seconds in values.items()]


def _facts(run: Summary, timing: Timing) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True, min_width=9)
    table.add_column()
    table.add_row("", "")
    fullest = sorted(run.memory, key=lambda row: -row.use.peak_reserved_bytes)
    for index, row in enumerate(fullest[:_MAX_CLASSES]):
        table.add_row("" if index else "memory", _memory_line(row))
    if run.capture.num_steps < _STEADY_STEPS:
        table.add_row("", "[dim]one step was captured; with --steps 2, optimizer states exist from its start[/dim]")
    if len(fullest) > _MAX_CLASSES:
        table.add_row("", f"[dim]{len(fullest) - _MAX_CLASSES} more in summary.json[/dim]")
    busiest = max(timing.tiers, key=lambda tier: tier.max_utilisation, default=None)
    if busiest is not None and busiest.busiest:
        link = busiest.busiest[0]
        table.add_row(
            "links",
            f"{busiest.title} are fullest: {busiest.mean_utilisation:.0%} on average, "
            f"{link.utilisation:.0%} on {escape(link.name)}",
        )
    table.add_row("cost", _cost_line(timing.cost))
    if timing.basis:
        table.add_row(
            "rests on", ", ".join(f"{name} {share:.0%}" for name, share in timing.basis.items() if share > _SMALL_SHARE)
        )
    effort = run.effort
    stood_for = effort.gpu_seconds_per_core_second
    amount = f"{stood_for:,.0f}" if stood_for and stood_for >= 10 else f"{stood_for or 0.0:.2g}"
    speed = f": {amount} GPU-seconds per core-second" if stood_for else ""
    spent = effort.capture_wall_seconds + effort.simulation_wall_seconds
    table.add_row(
        "rehearsed", f"in {format_seconds(spent)}, with at most {format_bytes(effort.peak_rss_bytes)} of memory{speed}"
    )
    return table


def _memory_line(row: ClassMemory) -> str:
    use = row.use
    share = use.peak_reserved_bytes / use.capacity_bytes if use.capacity_bytes else 0.0
    style = "red" if share > 0.95 else "yellow" if share > 0.85 else "green"
    largest = sorted(use.bytes_by_category.items(), key=lambda item: -item[1])[:3]
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in largest if size)
    host = f"; {format_bytes(use.host_bytes)} of host memory per rank" if use.host_bytes >= _SHOWN_HOST_BYTES else ""
    return (
        f"[{style}]{share:.0%}[/{style}] of the card, {format_bytes(use.peak_reserved_bytes)}: {_ranks(row.ranks)} "
        f"[dim]({parts}{host})[/dim]"
    )


def _cost_line(cost: RunCost) -> str:
    hours = cost.gpu_hours_per_1000_steps
    words = f"{hours:,.0f}" if hours >= 1000 else f"{hours:,.4g}"
    words += " GPU-hours for 1000 steps"
    if cost.usd_per_1000_steps is not None:
        words += f", ${cost.usd_per_1000_steps:,.2f} at ${cost.usd_per_gpu_hour:,.2f} per GPU-hour"
    return words


def _ranks(places: str) -> str:
    return f"rank {places}" if places.isdecimal() else f"ranks {places}"


def _plural(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"
