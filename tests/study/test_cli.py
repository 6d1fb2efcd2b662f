"""`sandtable study` from the outside."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from sandtable.cli import app
from sandtable.errors import StudyError
from sandtable.study.store import Assignment


def output(*words: str) -> str:
    result = CliRunner().invoke(app, ["study", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_list_names_the_ten_and_says_what_is_stored(tmp_path: Path) -> None:
    text = output("--list", "--out", str(tmp_path))
    assert text.count("to run") == 10
    assert "LocalSGD(16), gossip + threshold" in text


def test_list_shows_kinds_in_their_own_words(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text("[[methods]]\nname = 'pipe'\nkind = 'PipeDream(boundaries=[6], replicas=[7, 1])'\n")
    assert "to run  pipe  PipeDream(boundaries=[6], replicas=[7, 1])" in output(str(file), "--list")


def test_help_has_examples() -> None:
    assert "sudo sandtable study --data ~/data --network lab" in output("--help")


def test_prepare_writes_what_workers_read_and_prints_torchrun(tmp_path: Path) -> None:
    text = output("--prepare", "--out", str(tmp_path), "--workers", "3", "--only", "LocalSGD(32)")
    assert "-m sandtable.study.worker" in text
    assert text.rstrip().endswith(" 9")
    assert Assignment.load(tmp_path / "study.json").settings.workers == 3


def test_prepare_refuses_what_cannot_work_before_it_writes(tmp_path: Path) -> None:
    bad = tmp_path / "study.toml"
    bad.write_text("[[methods]]\nname = 'stale'\nsync = 'StaleSynchronous(bound=2)'\nexchange = 'Gossip()'\n")
    with pytest.raises(StudyError, match=r"stale: "):
        output(str(bad), "--prepare", "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_wrong_settings_are_one_message(tmp_path: Path) -> None:
    bad = tmp_path / "study.toml"
    bad.write_text("workers = 0")
    with pytest.raises(StudyError, match=r"study.toml: workers must be greater than or equal to 1, but got 0"):
        output(str(bad))


def test_out_that_cannot_be_written_is_refused_before_the_first_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StudyError, match=r"--out must be a folder, but .*file is a file; choose another folder"):
        output("--out", str(tmp_path / "file" / "below"))
