"""What a run leaves in its directory, and `sandtable report`."""

import json
from pathlib import Path

import pytest
from tests.report.conftest import Rehearsal
from typer.testing import CliRunner

from sandtable.cli import app
from sandtable.errors import ReportError
from sandtable.report.files import write_comparison, write_report


@pytest.fixture(scope="module")
def folder(rehearsal: Rehearsal, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run")
    rehearsal.trace.save(path)
    return path


def test_all_files_are_written_and_named(rehearsal: Rehearsal, tmp_path: Path) -> None:
    report = write_report(rehearsal.trace, rehearsal.timeline, tmp_path / "new", chakra=True)
    assert set(report.files) == {"report", "summary", "perfetto", "chakra"}
    assert all(path.exists() for path in report.files.values())


def test_report_works_the_time_out_again_and_tells_it(folder: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(folder), "--ranks", "3"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "a step" in result.output
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
    write_report(rehearsal.trace, rehearsal.timeline, tmp_path)
    with pytest.raises(ReportError, match="must differ"):
        write_comparison([tmp_path, tmp_path], tmp_path / "compare.html")


def test_ranks_must_be_numbers(folder: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(folder), "--ranks", "first"])
    assert isinstance(result.exception, ReportError)
    assert "--ranks must be a list" in str(result.exception)
