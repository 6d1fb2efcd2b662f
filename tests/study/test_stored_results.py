"""Studies stored by earlier versions are read, and their runs are not made again."""

import json
from pathlib import Path

import pytest

from sandtable.study.results import StudyRun
from sandtable.study.settings import load_settings

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*/results.json")), ids=lambda file: file.parent.name)
def test_the_runs_of_a_published_study_are_those_of_its_settings(file: Path) -> None:
    settings = load_settings(RESULTS / f"{file.parent.name}.toml")
    fingerprints = {method.name: settings.fingerprint(method) for method in settings.methods}
    runs = [StudyRun.from_dict(run, source=str(file)) for run in json.loads(file.read_text(encoding="utf-8"))["runs"]]
    assert runs
    assert {run.name: run.fingerprint for run in runs}.items() <= fingerprints.items()
