"""Table, plots and page: drawn from the same rows."""

import io
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from sandtable.study import StudySettings
from sandtable.study.comparison import compare, seconds_to
from sandtable.study.events import EpochFinished, MethodAdvanced, MethodFinished, MethodStarted, StudyStarted
from sandtable.study.method import Method
from sandtable.study.page import study_page
from sandtable.study.plots import PLOTS, write_plots
from sandtable.study.progress import StudyTerminal
from sandtable.study.results import Epoch, StudyRun
from sandtable.study.table import markdown, print_table


def run(name: str, *, seconds: float, communication_s: float, accuracy: float) -> StudyRun:
    epochs = tuple(
        Epoch(
            seconds=seconds / 2,
            communication_s=communication_s / 2,
            synchronisation_s=communication_s / 2,
            exposed_s=communication_s / 2,
            sent_bytes=communication_s * 1e6,
            received_bytes=0,
            messages=1,
            loss=1.0,
            accuracy=accuracy * part,
            disagreement=0.0,
        )
        for part in (0.5, 1.0)
    )
    return StudyRun(name=name, fingerprint="x", settings={}, epochs=epochs, replica_accuracy=accuracy, memory_bytes=1e8)


RUNS = [
    run("the first", seconds=100, communication_s=60, accuracy=0.70),
    run("sparse <b>", seconds=50, communication_s=1.2, accuracy=0.69),
    run("silent", seconds=40, communication_s=0, accuracy=0.30),
]


def test_rows_are_measured_against_the_first() -> None:
    first, sparse, silent = compare(RUNS)
    assert (first.points, first.speed_up, first.communication_less) == (0.0, 1.0, 1.0)
    assert (sparse.points, sparse.speed_up, sparse.communication_less) == pytest.approx((-1.0, 2.0, 50.0))
    assert sparse.sooner_to_first == pytest.approx(2.0)
    assert silent.communication_less == float("inf")
    assert silent.sooner_to_first is None
    assert compare([]) == []


def test_time_to_an_accuracy_is_the_end_of_the_epoch_that_reached_it() -> None:
    assert seconds_to(RUNS[0], 0.3) == 50
    assert seconds_to(RUNS[0], 0.7) == 100
    assert seconds_to(RUNS[0], 0.8) is None


def test_table_has_every_figure() -> None:
    console = Console(width=200, record=True)
    print_table(compare(RUNS), StudySettings(), console)
    text = console.export_text()
    assert "cifar10, small-cnn, 8 workers on loopback, batch 100, 30 epochs" in text
    assert [word in text for word in ("70.00%", "-1.00", "1 min 40 s", "50.0 ×", "2.00 ×", "none")] == [True] * 6


def test_table_in_a_narrow_terminal_leaves_columns_out_and_says_so() -> None:
    console = Console(width=72, record=True, force_terminal=True)
    print_table(compare(RUNS), StudySettings(), console)
    text = console.export_text()
    assert "speed-up" in text
    assert "rate, points, synchronisation" in text
    assert all(len(line) <= 72 for line in text.splitlines()[1:])


def test_markdown_has_a_line_a_run_and_its_rate() -> None:
    settings = {"training": {"learning_rate": 0.15}, "method": {"learning_rate": 0.05}}
    own = replace(RUNS[1], name="sparse | <b>", settings=settings)
    common = replace(RUNS[0], settings={"training": {"learning_rate": 0.15}, "method": {"learning_rate": None}})
    head, _, names, rule, *lines, end = markdown(compare([common, own]), StudySettings()).split("\n")
    assert head.startswith("cifar10, small-cnn")
    assert names.startswith("| configuration | rate | accuracy |")
    assert rule.count("---:") == 9
    assert [line.split(" | ")[:3] for line in lines] == [
        ["| the first", "0.15", "70.00%"],
        [r"| sparse \| <b>", "0.05", "69.00%"],
    ]
    assert end == ""


def test_progress_in_a_file_is_a_line_an_epoch() -> None:
    file = io.StringIO()
    method = Method(name="mine")
    with StudyTerminal(Console(file=file, width=160)) as listen:
        listen(StudyStarted(settings=StudySettings(), methods=(method,)))
        listen(MethodStarted(method=method))
        listen(MethodAdvanced(method="mine", num_steps=1, total_steps=4))
        listen(EpochFinished(method="mine", num_steps=2, total_steps=4, epoch=1, accuracy=0.5, loss=1.25))
        listen(MethodFinished(run=RUNS[0]))
    headline, *lines = file.getvalue().splitlines()
    assert headline.startswith("cifar10, small-cnn")
    assert lines[0] == "mine, epoch 1: accuracy 50.00%, loss 1.250"
    assert lines[1].startswith("1/1 the first: accuracy 70.00%")
    assert len(lines) == 2


def test_names_with_brackets_are_printed_as_they_are() -> None:
    file, name = io.StringIO(), "top-k [dgc] [/dgc]"
    console = Console(file=file, width=200)
    with StudyTerminal(console) as listen:
        listen(StudyStarted(settings=StudySettings(), methods=(Method(name=name),)))
        listen(MethodStarted(method=Method(name=name)))
        listen(EpochFinished(method=name, num_steps=1, total_steps=1, epoch=1, accuracy=0.5, loss=1.25, is_last=True))
        listen(MethodFinished(run=replace(RUNS[0], name=name)))
    print_table(compare([replace(RUNS[0], name=name)]), StudySettings(), console)
    assert file.getvalue().count(name) == 3


def test_plots_are_written_and_are_not_empty(tmp_path: Path) -> None:
    files = write_plots(compare(RUNS), tmp_path / "new")
    assert [file.name for file in files] == [f"{name}.png" for name in PLOTS]
    for file in files:
        data = file.read_bytes()
        assert data.startswith(b"\x89PNG")
        width, height = struct.unpack(">II", data[16:24])
        assert (width, height) == (960, 660)
        assert len(data) > 10_000


def test_page_stands_alone_in_light_and_dark_and_escapes_names() -> None:
    page = study_page(compare(RUNS), StudySettings(), command="sandtable study <x>")
    assert page.count("data:image/png;base64,") == 2 * len(PLOTS)
    assert "prefers-color-scheme: dark" in page
    assert "sparse &lt;b&gt;" in page
    assert "<x>" not in page
    assert "{{" not in page
    assert "http://" not in page
    assert "https://" not in page
    assert "<script" not in page


def test_many_runs_are_drawn_too(tmp_path: Path) -> None:
    many = [replace(RUNS[0], name=f"run {number}") for number in range(14)]
    assert len(write_plots(compare(many), tmp_path)) == 4
