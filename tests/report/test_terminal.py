"""The summary on a terminal says what the run was, in words that fit the width."""

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tests.trace.building import PAIRS, RUN, WORLD, make_rank

from sandtable.report import print_summary
from sandtable.trace import MISSING_PACKAGE, CaptureSummary, MemoryPeaks, Note, NoteSummary, Trace, summarise_trace


@pytest.fixture
def summary() -> CaptureSummary:
    full = MemoryPeaks(allocated_bytes=70 << 30, reserved_bytes=79 << 30, capacity_bytes=80 << 30)
    trace = Trace.assemble(
        {0: make_rank(0), 3: make_rank(3, memory=full)},
        classes={0: [0, 1, 2], 3: [3]},
        groups=[WORLD, *PAIRS],
        run=replace(RUN, notes=(Note("run", "a [bold] word"),), captured_ranks=(0, 1, 3)),
    )
    return summarise_trace(trace)


def drawn(summary: CaptureSummary, width: int = 80) -> str:
    console = Console(width=width, record=True, file=None, force_terminal=False)
    with console.capture() as capture:
        print_summary(summary, console, saved=Path("out/trace.sandtable"))
    return capture.get()


def test_the_job_its_classes_and_their_memory_are_shown(summary: CaptureSummary) -> None:
    text = drawn(summary)
    assert "4 ranks on" in text
    assert "2 classes of equal ranks, 3 ranks captured" in " ".join(text.split())
    row = next(line for line in text.splitlines() if line.startswith("3 "))
    assert row.split()[-5:] == ["70.00", "GiB", "79.00", "GiB", "99%"]
    assert "out/trace.sandtable" in text


def test_traffic_names_the_ranks_it_belongs_to(summary: CaptureSummary) -> None:
    lines = drawn(summary).splitlines()
    assert any(line.startswith("all_reduce") and line.rstrip().endswith("all") for line in lines)
    assert any(line.startswith("send") and "even, 2" in line and line.rstrip().endswith("rank 0") for line in lines)


def test_what_scripts_say_is_not_taken_for_markup(summary: CaptureSummary) -> None:
    assert "a [bold] word" in drawn(summary)


def test_nothing_is_wider_than_the_terminal(summary: CaptureSummary) -> None:
    assert max(len(line) for line in drawn(summary, width=80).splitlines()) <= 80


def test_missing_packages_are_one_note_behind_the_others(summary: CaptureSummary) -> None:
    missing = [
        NoteSummary(kind=MISSING_PACKAGE, text=f"{name} is not installed here: ...", file="train.py", line=1)
        for name in ("pynvml", "apex", "pynvml")
    ]
    text = drawn(replace(summary, notes=(*missing, *summary.notes)), width=200)
    assert text.index("a [bold] word") < text.index("missing packages: apex, pynvml are not installed here")
    assert "missing package: " not in text
    assert "missing package: pynvml" in drawn(replace(summary, notes=(missing[0],)))


def test_the_same_note_of_several_lines_is_one(summary: CaptureSummary) -> None:
    notes = [NoteSummary(kind="unknown value", text="was read", file="train.py", line=line) for line in range(1, 6)]
    text = drawn(replace(summary, notes=(*notes, *summary.notes)), width=200)
    assert "unknown value: was read (train.py:1, train.py:2, train.py:3 and 2 more)" in text
    assert text.count("unknown value") == 1
