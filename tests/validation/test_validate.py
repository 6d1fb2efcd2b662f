"""From a row to its error: capture, simulation, cache and command line, on a tiny model."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sandtable.cli import app
from sandtable.errors import ValidationSetError
from sandtable.events import Event
from sandtable.validation import Choice, RowFailed, RowPredicted, RowStarted, load_sets, validate
from sandtable.validation.prediction import capture_path
from sandtable.validation.run import choose
from sandtable.vgpu import Launcher

ROOT = Path(__file__).parents[2]
TINY = """
title = "tiny"
source = "made up"
cluster = "dgx-a100"
script = "megatron_gpt.py"
args = ["--init-optimizer", "--steps", "1", "--global-batch", "4", "--layers", "2"]
flags = { tp = "--tp", pp = "--pp" }
rank_within = ["gpus"]
rows = [
  { id = "tiny-tp", gpus = 2, tp = 2, global_batch = 4, measured = { tiny = 10, tiny-memory = 0.02 } },
  { id = "tiny-pp", gpus = 2, pp = 2, global_batch = 4, measured = { tiny = 20 } },
]
scores.tiny.quantity = "step_ms"
scores.tiny-memory.quantity = "peak_gib"
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repository")
    shutil.copytree(ROOT / "validation" / "scripts", root / "validation" / "scripts")
    (root / "examples").mkdir()
    shutil.copy(ROOT / "examples" / "job.py", root / "examples")
    (root / "validation" / "rows").mkdir()
    (root / "validation" / "rows" / "tiny.toml").write_text(TINY)
    return root / "validation"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def test_rows_are_captured_once_and_predicted(directory: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Event] = []
    report = validate(directory, cache=cache, listen=events.append)
    assert events == [
        RowStarted(row_id="tiny-tp", done=0, total=2),
        RowPredicted(row_id="tiny-tp", done=1, total=2),
        RowStarted(row_id="tiny-pp", done=1, total=2),
        RowPredicted(row_id="tiny-pp", done=2, total=2),
    ]
    assert report.failures == {}
    tiny, memory = report.scores
    assert [each.row.id for each in tiny.outcomes] == ["tiny-tp", "tiny-pp"]
    assert all(0.1 < each.predicted < 1000 for each in tiny.outcomes)
    assert memory.outcomes[0].predicted == pytest.approx(0.02, rel=1.0)
    assert len(report.contests["tiny"]) == 1
    parts = tiny.outcomes[0].prediction.breakdown_ns
    assert sum(parts.values()) == pytest.approx(tiny.outcomes[0].prediction.step_ns, rel=1e-3)

    monkeypatch.setattr(Launcher, "capture", lambda *_, **__: pytest.fail("captured again"))
    shutil.rmtree(cache / "predictions")
    assert validate(directory, cache=cache).to_dict() == report.to_dict()
    monkeypatch.setattr("sandtable.validation.prediction.rehearse", lambda *_: pytest.fail("simulated again"))
    assert validate(directory, cache=cache).to_dict() == report.to_dict()


def test_rows_are_predicted_in_several_processes(directory: Path, cache: Path) -> None:
    events: list[Event] = []
    report = validate(directory, cache=cache, jobs=2, listen=events.append)
    assert report.to_dict() == validate(directory, cache=cache).to_dict()
    assert [event.done for event in events if isinstance(event, RowPredicted)] == [1, 2]


def test_the_command_prints_figures_of_each_score(directory: Path, cache: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("sandtable.validation.run.cache_directory", lambda: cache)
    done = CliRunner().invoke(app, ["validate", "--from", str(directory), "--json", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    plain = json.loads(done.stdout)
    assert set(plain["sets"]["tiny"]) >= {"n", "mean_abs_pct", "median_abs_pct", "max_abs_pct", "rows"}
    assert json.loads((tmp_path / "validation.json").read_text()) == plain
    assert "tiny-pp" in (tmp_path / "validation.svg").read_text()
    shown = CliRunner().invoke(app, ["validate", "--from", str(directory), "--set", "tiny"])
    assert "tiny-tp" in shown.stdout
    assert "absolute error" in shown.stdout


def test_an_unknown_set_is_refused(directory: Path, cache: Path) -> None:
    with pytest.raises(ValidationSetError, match="there are tiny, tiny-memory"):
        validate(directory, choice=Choice(sets=("large",)), cache=cache)


def test_a_row_that_fails_is_reported_and_the_others_go_on(directory: Path, cache: Path) -> None:
    broken = directory / "rows" / "broken.toml"
    text = TINY.replace("tiny", "odd").replace("tp = 2,", "tp = 3,").replace("--layers", "--unknown", 1)
    broken.write_text(text.replace("--unknown", "--layers").replace("gpus = 2, tp", "gpus = 3, tp"))
    events: list[Event] = []
    try:
        report = validate(directory, choice=Choice(sets=("broken",)), cache=cache, listen=events.append)
    finally:
        broken.unlink()
    assert list(report.failures) == ["odd-tp"]
    assert [event for event in events if isinstance(event, RowFailed)] == [
        RowFailed(row_id="odd-tp", done=1, total=2, message=report.failures["odd-tp"])
    ]
    assert [each.row.id for each in report.scores[0].outcomes] == ["odd-pp"]


def test_a_sample_is_always_the_same_and_keeps_calibration_rows() -> None:
    large = next(each for each in load_sets(ROOT / "validation") if len(each.rows) > 500)
    first, second = (choose(large, Choice(sample=20), cache=Path("nowhere")) for _ in range(2))
    assert first == second
    calibrated = [row for row in large.rows if row.use == "calibrate"]
    assert len(first) == 20 + len(calibrated)
    assert choose(large, Choice(captured_only=True), cache=Path("nowhere")) == []


def test_a_capture_is_named_after_what_the_script_does(directory: Path, tmp_path: Path) -> None:
    shutil.copytree(directory.parent, tmp_path / "copy")
    before, after = load_sets(directory)[0], load_sets(tmp_path / "copy" / "validation")[0]

    def name(row_set, row=0) -> str:
        return capture_path(row_set, row_set.rows[row], cache=tmp_path).name

    assert name(before) == name(after)
    assert name(before) != name(before, row=1)
    file = after.script.with_name("megatron_model.py")
    file.write_text("# another word\n" + file.read_text())
    assert name(before) == name(after)
    file.write_text(file.read_text() + "\nNUMBER = 1\n")
    assert name(before) != name(after)
