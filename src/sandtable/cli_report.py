"""The commands that end in a report: what follows a capture, and making reports again."""

from __future__ import annotations

import time
import webbrowser
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from sandtable import cluster as clusters
from sandtable.cli_options import Jitter, LinkScale, Seed, SlowNode, what_if
from sandtable.engine import WhatIf, simulate
from sandtable.engine.compute import MeasuredTable
from sandtable.errors import ReportError
from sandtable.report.files import PAGE, Report, write_comparison, write_report
from sandtable.report.outcome import print_outcome
from sandtable.report.summary import FILE_NAME, Asked, load_summary
from sandtable.trace import Trace

__all__ = ["Rehearsal", "register", "report_command", "report_run"]

_HELP = """Write the report of a run again, or compare several runs.

One directory: its report.html, summary.json and trace.json.gz. Several: one page with all of them side by side.

Examples:

  sandtable report sandtable-out --ranks 0,8,1024 --open

  sandtable report runs/tp4 runs/tp8 runs/tp8-zero --out compare.html

  sandtable report sandtable-out --cluster dgx-h100 --link-scale inter=0.5 --out on-h100
"""

_DEFAULT_OUT = Path("sandtable-out")
_COMPARISON = Path("compare.html")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What to work out about a captured run: on which cluster, with which changes, and what the user told about it."""

    cluster: str
    num_nodes: int | None
    asked: Asked = field(default_factory=Asked)
    what_if: WhatIf | None = None
    ranks: tuple[int, ...] = ()
    chakra: bool = False


def report_run(trace: Trace, rehearsal: Rehearsal, out: Path) -> Report:
    """Simulates a captured run and writes everything about it into `out`."""
    wall, core = time.perf_counter(), time.process_time()
    cluster = clusters.load(rehearsal.cluster, nodes=rehearsal.num_nodes)
    measured = MeasuredTable.beside(rehearsal.cluster)
    timeline = simulate(trace, cluster, what_if=rehearsal.what_if, measured=measured)
    _ = timeline.step_ns
    given = asdict(rehearsal.asked) | {
        "cluster": rehearsal.cluster,
        "what_if": _changes(rehearsal.what_if),
        "simulation_wall_seconds": time.perf_counter() - wall,
        "simulation_core_seconds": time.process_time() - core,
    }
    return write_report(trace, timeline, out, asked=Asked(**given), ranks=rehearsal.ranks, chakra=rehearsal.chakra)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report", help=_HELP)(report_command)


def report_command(
    runs: Annotated[list[Path] | None, typer.Argument(help="directories that `sandtable run --out` wrote")] = None,
    out: Annotated[Path | None, typer.Option(help="the page to write; of one run: the directory")] = None,
    ranks: Annotated[str, typer.Option(help="ranks in the timeline, such as 0,8,1024")] = "",
    chakra: Annotated[bool, typer.Option("--chakra", help="write Chakra execution traces too")] = False,
    cluster: Annotated[str | None, typer.Option(help="work the time out anew, on another cluster")] = None,
    slow_node: SlowNode = None,
    link_scale: LinkScale = None,
    jitter: Jitter = 0.0,
    seed: Seed = 0,
    open_page: Annotated[bool, typer.Option("--open", help="show the page in the browser")] = False,
) -> None:
    console = Console()
    folders = runs or [_DEFAULT_OUT]
    if len(folders) > 1:
        for folder in folders:
            if not (folder / FILE_NAME).exists():
                report_run(Trace.load(folder), _again(folder), folder)
        page = write_comparison(folders, out or _COMPARISON)
        console.print(f"comparison {page}", highlight=False, markup=False)
    else:
        folder, page = folders[0], out or folders[0]
        target = page.parent if page.suffix == ".html" else page
        rehearsal = _again(folder, ranks=_numbers(ranks), chakra=chakra)
        changes = what_if(slow_node, link_scale, jitter, seed)
        if changes != WhatIf():
            rehearsal = replace(rehearsal, what_if=changes)
        if cluster is not None:
            rehearsal = replace(rehearsal, cluster=cluster)
        report = report_run(Trace.load(folder), rehearsal, target)
        if page.suffix == ".html" and page.name != PAGE:
            report.files["report"] = report.files["report"].rename(page)
        print_outcome(report.summary, console, files=report.files)
        page = report.files["report"]
    if open_page:
        webbrowser.open(page.resolve().as_uri())


def _again(folder: Path, *, ranks: tuple[int, ...] = (), chakra: bool = False) -> Rehearsal:
    """The rehearsal that a directory was written by; without a summary, the cluster that its trace names."""
    trace = Trace.load(folder)
    num_nodes = -(-trace.world_size // trace.ranks_per_node)
    if not (folder / FILE_NAME).exists():
        return Rehearsal(cluster=trace.cluster, num_nodes=num_nodes, ranks=ranks, chakra=chakra)
    known = load_summary(folder)
    throughput: dict[str, Any] = known["throughput"] or {}
    asked = Asked(
        tokens_per_step=throughput.get("tokens_per_step"),
        samples_per_step=throughput.get("samples_per_step"),
        usd_per_gpu_hour=known["cost"]["usd_per_gpu_hour"] if known["cost"]["price_source"] == "given" else None,
    )
    changes = known["what_if"]
    if changes:
        slow = {int(node): speed for node, speed in changes.get("slow_nodes", {}).items()}
        changes = changes | {"slow_nodes": slow}
    return Rehearsal(
        cluster=known["cluster"]["asked"],
        num_nodes=known["cluster"]["num_nodes"],
        asked=asked,
        what_if=WhatIf(**changes) if changes else None,
        ranks=ranks,
        chakra=chakra,
    )


def _changes(what_if: WhatIf | None) -> dict[str, Any]:
    """What differs from doing nothing."""
    if what_if is None or what_if == WhatIf():
        return {}
    return {name: dict(value) if isinstance(value, dict) else value for name, value in asdict(what_if).items() if value}


def _numbers(text: str) -> tuple[int, ...]:
    parts: Sequence[str] = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdigit() for part in parts):
        raise ReportError(
            f"--ranks must be a list such as 0,8,1024, but got '{text}'; give numbers with commas between"
        )
    return tuple(int(part) for part in parts)
