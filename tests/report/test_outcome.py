"""The outcome on a terminal: the answers, on one screen."""

from dataclasses import replace
from pathlib import Path

from rich.console import Console
from tests.report.conftest import Rehearsal

from sandtable.report.outcome import print_outcome
from sandtable.report.summary import Summary
from sandtable.units import format_seconds


def drawn(run: Summary, width: int = 100) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as capture:
        print_outcome(run, console, files={"report": Path("out/report.html")})
    return capture.get()


def test_step_time_efficiency_memory_links_and_cost_are_shown(rehearsal: Rehearsal) -> None:
    text = drawn(rehearsal.summary)
    assert f"{format_seconds(rehearsal.summary.step_seconds)} per step" in text
    for word in ("MFU", "HFU", "forward", "recompute", "memory", "links", "GPU-hours", "$", "rests on", "report.html"):
        assert word in text, word


def test_it_fits_one_screen_of_any_width(rehearsal: Rehearsal) -> None:
    for width in (80, 100, 200):
        lines = drawn(rehearsal.summary, width).splitlines()
        assert len(lines) <= 30
        assert max(map(len, lines)) <= width


def test_bars_are_as_long_as_each_other(rehearsal: Rehearsal) -> None:
    bars = [line.count("█") for line in drawn(rehearsal.summary).splitlines() if "█" in line]
    assert len(bars) == 2
    assert set(bars) == {60}


def test_one_rank_is_no_plural(rehearsal: Rehearsal) -> None:
    memory = tuple(replace(row, ranks="0") for row in rehearsal.summary.memory[:1])
    text = drawn(replace(rehearsal.summary, world_size=1, memory=memory))
    assert "1 rank on" in text
    assert ": rank 0 (" in text


def test_names_of_scripts_are_not_taken_for_markup(rehearsal: Rehearsal) -> None:
    cluster = replace(rehearsal.summary.cluster, title="[red]mine[/red]")
    assert "[red]mine[/red]" in drawn(replace(rehearsal.summary, cluster=cluster))
