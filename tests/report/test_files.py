"""What a run leaves in its directory, and `sandtable report`."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.report.conftest import Rehearsal
from typer.testing import CliRunner

from sandtable.cli import app
from sandtable.errors import LaunchError, ReportError
from sandtable.report import (
    Summary,
    clear_run,
    files,
    load_summary,
    require_writable,
    write_comparison,
    write_page,
    write_report,
)


@pytest.fixture(scope="module")
def folder(rehearsal: Rehearsal, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run")
    rehearsal.trace.save(path)
    return path


def test_all_files_are_written_and_named(rehearsal: Rehearsal, tmp_path: Path) -> None:
    report = write_report(rehearsal.summary, rehearsal.timeline, tmp_path / "new", chakra=True)
    assert set(report.files) == {"report", "summary", "perfetto", "chakra"}
    assert all(path.exists() for path in report.files.values())


def test_report_works_the_time_out_again_and_tells_it(folder: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(folder), "--ranks", "3"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "per step" in result.output
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["world_size"] == 16
    assert summary["cluster"]["asked"] == "dgx-a100"
    assert (folder / "report.html").stat().st_size < 3_000_000
    assert '"rank":3,' in (folder / "report.html").read_text()


def test_a_page_can_be_written_elsewhere(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "mine.html"
    result = CliRunner().invoke(app, ["report", str(folder), "--out", str(page)], catch_exceptions=False)
    assert result.exit_code == 0
    assert page.exists()


def test_several_directories_become_a_comparison(rehearsal: Rehearsal, folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    rehearsal.trace.save(other)
    page = tmp_path / "compare.html"
    result = CliRunner().invoke(app, ["report", str(folder), str(other), "--out", str(page)], catch_exceptions=False)
    assert result.exit_code == 0
    assert '"kind":"compare"' in page.read_text()


def test_a_run_cannot_be_compared_with_itself(rehearsal: Rehearsal, tmp_path: Path) -> None:
    write_report(rehearsal.summary, rehearsal.timeline, tmp_path)
    with pytest.raises(ReportError, match="must differ"):
        write_comparison([tmp_path, tmp_path], tmp_path / "compare.html")


def test_ranks_must_be_numbers(folder: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(folder), "--ranks", "first"])
    assert isinstance(result.exception, LaunchError)
    assert "--ranks must be a list" in str(result.exception)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_page_is_one_file_and_nothing_else(rehearsal: Rehearsal, tmp_path: Path) -> None:
    write_report(rehearsal.summary, rehearsal.timeline, tmp_path)
    before = snapshot(tmp_path)
    write_page(rehearsal.summary, rehearsal.timeline, tmp_path / "other.html")
    after = snapshot(tmp_path)
    assert after.pop("other.html").startswith(b"<!doctype html>")
    assert after == before


def test_the_command_changes_nothing_but_the_page_it_is_asked_for(folder: Path) -> None:
    command = ["report", str(folder), "--cluster", "dgx-h100", "--out", str(folder / "h100.html")]
    CliRunner().invoke(app, ["report", str(folder)], catch_exceptions=False)
    before = snapshot(folder)
    assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0
    after = snapshot(folder)
    after.pop("h100.html")
    assert after == before


def test_a_failed_run_leaves_a_page_and_its_summary(failed: Summary, tmp_path: Path) -> None:
    report = write_report(failed, None, tmp_path)
    assert set(snapshot(tmp_path)) == {"report.html", "summary.json"}
    assert set(report.files) == {"report", "summary"}
    assert load_summary(tmp_path) == failed


def test_a_crash_leaves_the_old_report_whole(
    rehearsal: Rehearsal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_report(rehearsal.summary, rehearsal.timeline, tmp_path, chakra=True)
    before = snapshot(tmp_path)

    def crash(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_perfetto", crash)
    with pytest.raises(ReportError, match="No space left on device"):
        write_report(replace(rehearsal.summary, command=("other.py",)), rehearsal.timeline, tmp_path, chakra=True)
    assert snapshot(tmp_path) == before


def test_chakra_traces_of_an_earlier_report_are_replaced(rehearsal: Rehearsal, tmp_path: Path) -> None:
    for ranks in ([0, 8], [3]):
        write_report(rehearsal.summary, rehearsal.timeline, tmp_path, ranks=ranks, chakra=True)
    assert [path.name for path in (tmp_path / "chakra").iterdir()] == ["rank.3.et"]


@pytest.mark.parametrize("name", ["new", "new/below", "old", "new.html", "old/page.html", "new/page.html"])
def test_places_that_can_be_written_pass_and_stay_as_they_were(tmp_path: Path, name: str) -> None:
    (tmp_path / "old").mkdir()
    require_writable(tmp_path / name)
    assert [path.name for path in tmp_path.rglob("*")] == ["old"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("file/below", "Not a directory"),
        ("file/page.html", "Not a directory"),
        ("file", "needs a directory, but .* is a file"),
        ("folder.html", "must be a file, but .* is a directory"),
        ("/proc/sandtable", "cannot be written"),
        ("/proc/page.html", "cannot be written"),
        ("x" * 300, "File name too long"),
    ],
)
def test_places_that_cannot_be_written_are_refused_with_a_remedy(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(ReportError, match=reason) as caught:
        require_writable(tmp_path / name)
    assert "--out" in str(caught.value)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_directory_may_be_called_like_a_page(tmp_path: Path) -> None:
    (tmp_path / "run.html").mkdir()
    require_writable(tmp_path / "run.html", is_page=False)


def test_clearing_a_run_removes_what_it_wrote_and_nothing_else(rehearsal: Rehearsal, tmp_path: Path) -> None:
    rehearsal.trace.save(tmp_path)
    write_report(rehearsal.summary, rehearsal.timeline, tmp_path, chakra=True)
    (tmp_path / ".sandtable-writing-1-report.html").write_text("half")
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "logs").mkdir()
    clear_run(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs", "mine.txt"]
    clear_run(tmp_path / "nowhere")


def test_clearing_a_run_keeps_files_of_the_user_below_chakra(tmp_path: Path) -> None:
    (tmp_path / "chakra").mkdir()
    (tmp_path / "chakra" / "rank.0.et").write_bytes(b"")
    (tmp_path / "chakra" / "notes.md").write_text("mine")
    clear_run(tmp_path)
    assert list(snapshot(tmp_path)) == ["chakra/notes.md"]
