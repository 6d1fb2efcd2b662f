"""Output is never destroyed: what a command writes, where, and what it leaves alone."""

import json
from pathlib import Path

import pytest
from tests.report.conftest import Rehearsal
from typer.testing import CliRunner, Result

from sandtable.cli import app
from sandtable.errors import ReportError


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture
def folder(rehearsal: Rehearsal, tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir()
    rehearsal.trace.save(path)
    assert invoke("report", path).exit_code == 0
    return path


def test_a_page_inside_the_run_is_written_beside_its_files(folder: Path):
    before = contents(folder)
    assert invoke("report", folder, "--cluster", "dgx-h100", "--out", folder / "x.html").exit_code == 0
    after = contents(folder)
    assert after.pop("x.html")
    assert after == before


def test_a_page_elsewhere_is_the_only_file(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    assert invoke("report", folder, "--out", "c.html").exit_code == 0
    assert [path.name for path in here.iterdir()] == ["c.html"]


def test_other_conditions_without_out_are_printed_and_change_nothing(folder: Path):
    before = contents(folder)
    result = invoke("report", folder, "--cluster", "dgx-h100", "--link-scale", "inter=0.5")
    assert result.exit_code == 0
    assert "H100" in result.output
    assert contents(folder) == before


def test_other_conditions_may_go_to_a_directory_of_their_own(folder: Path, tmp_path: Path):
    before = contents(folder)
    assert invoke("report", folder, "--cluster", "dgx-h100", "--out", tmp_path / "h100").exit_code == 0
    assert json.loads((tmp_path / "h100" / "summary.json").read_text())["cluster"]["name"] == "dgx-h100"
    assert contents(folder) == before


@pytest.mark.parametrize("command", ["run", "report"])
def test_an_out_that_cannot_be_written_is_refused_before_the_work(command: str, folder: Path, tmp_path: Path):
    (tmp_path / "file").write_text("")
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('the script ran')\n")
    arguments = {"run": [script], "report": [folder]}[command]
    with pytest.raises(ReportError, match="writ") as caught:
        invoke(command, "--out", tmp_path / "file" / "out", *arguments)
    assert str(tmp_path / "file") in str(caught.value)


def test_damaged_summaries_are_refused_with_the_remedy(folder: Path):
    (folder / "summary.json").write_text('{"schema": "sandtable-summary", "version"')
    with pytest.raises(ReportError, match="summary"):
        invoke("report", folder)
