"""`sandtable report` and `sandtable show`: the results of earlier runs."""

from __future__ import annotations

import shlex
import webbrowser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sandtable.cli.options import Command, WhatIfOptions, parse_ranks
from sandtable.cli.run import DEFAULT_OUT
from sandtable.engine import WhatIf
from sandtable.findings import Severity
from sandtable.rehearsal import Rehearsal, compare, load
from sandtable.report import files_in, print_failure, print_findings, print_outcome, print_summary
from sandtable.report.files import require_writable
from sandtable.report.summary import load_summary
from sandtable.trace import Trace, summarise_trace

__all__ = ["ReportOptions", "register", "report", "show"]

_HELP = """Write the report of a run again, or compare several runs.

With one directory, --cluster and the what-if options simulate the run under other conditions; the outcome is printed,
and kept only with --out. --out NAME.html writes one page, --out NAME a directory. Several directories are compared on
one page.

Examples:

  sandtable report sandtable-out --ranks 0,8,1024 --open

  sandtable report runs/tp4 runs/tp8 runs/tp8-zero --out compare.html

  sandtable report sandtable-out --cluster dgx-h100 --link-scale inter=0.5 --out on-h100
"""


@dataclass(frozen=True, kw_only=True)
class ReportOptions(WhatIfOptions):
    """The options of `sandtable report`, as typed."""

    runs: Annotated[list[Path] | None, typer.Argument(help="directories that `sandtable run --out` wrote")] = None
    out: Annotated[Path | None, typer.Option(help="an HTML page, or a directory for all files")] = None
    ranks: Annotated[str, typer.Option(help="ranks in the timeline, such as 0,8,1024")] = ""
    chakra: Annotated[bool, typer.Option("--chakra", help="write Chakra execution traces, too")] = False
    cluster: Annotated[str | None, typer.Option(help="simulate the run on another cluster")] = None
    open_page: Annotated[bool, typer.Option("--open", help="show the page in the browser")] = False


def register(app: typer.Typer) -> None:
    """Add the commands."""
    Command(name="report", function=report, options=ReportOptions).add_to(app, help=_HELP)
    app.command("show")(show)


def report(options: ReportOptions) -> None:
    """Write and print the report of one run, or compare several."""
    folders = options.runs or [DEFAULT_OUT]
    page = _compare(folders, options) if len(folders) > 1 else _report(folders[0], options)
    if options.open_page and page is not None:
        webbrowser.open(page.resolve().as_uri())


def _compare(folders: Sequence[Path], options: ReportOptions) -> Path:
    page = compare(folders, options.out or Path("compare.html"))
    Console().print(f"comparison {page}", highlight=False, markup=False)
    return page


def _report(folder: Path, options: ReportOptions) -> Path | None:
    """Write the report to --out or the run's directory; other conditions without --out are only printed."""
    ranks = parse_ranks(options.ranks, example="a list such as 0,8,1024")
    if options.out is not None:
        require_writable(options.out)
    run = _under(load(folder, cluster=options.cluster), options)
    if options.out is None and (options.cluster is not None or options.what_if != WhatIf()):
        _print(run, {})
        Console().print("[dim]nothing was written: --out NAME keeps this report[/dim]", highlight=False)
        return None
    out = options.out or folder
    if out.suffix == ".html":
        files = {"report": run.save_page(out, ranks=ranks)}
    elif out.resolve() == folder.resolve():
        files = run.save_report(out, ranks=ranks, chakra=options.chakra).files
    else:
        files = run.save(out, ranks=ranks, chakra=options.chakra).files
    _print(run, files)
    return files["report"]


def _under(run: Rehearsal, options: ReportOptions) -> Rehearsal:
    """Return the run under the conditions in `options`."""
    changes = options.what_if
    if changes != WhatIf():
        run = run.what_if(
            slow_nodes=changes.slow_nodes, link_scale=changes.link_scale, jitter=changes.jitter, seed=changes.seed
        )
    return run


def _print(run: Rehearsal, files: Mapping[str, Path]) -> None:
    if run.has_time:
        print_outcome(run.summary, Console(), files=files)
    else:
        print_failure(run.summary, Console(), files=files)


def show(path: Annotated[Path, typer.Argument(help="a trace, or the directory of a run")] = DEFAULT_OUT) -> None:
    """Print what was captured: operators, memory, traffic by group, host waits; for a failed run, what is wrong.

    Example: sandtable show sandtable-out
    """
    trace, console = Trace.load(path), Console()
    console.print(f"[dim]{shlex.join(trace.command)}[/dim]", highlight=False)
    if "summary" not in files_in(path):  # a trace alone: nothing is simulated to show it
        print_summary(summarise_trace(trace), console)
        return
    summary = load_summary(path)
    if summary.timing is None and any(finding.severity is Severity.ERROR for finding in summary.findings):
        print_failure(summary, console)
        return
    rules = {finding.rule for finding in summary.findings}
    notes = tuple(note for note in summary.capture.notes if note.kind.replace(" ", "-") not in rules)
    print_summary(replace(summary.capture, notes=notes), console)
    print_findings(summary.findings, console)
