"""Correct scripts of many kinds are not accused of anything."""

from pathlib import Path

import pytest
from tests.vgpu.virtual import on_shared_launcher

from sandtable import LaunchOptions, rehearse
from sandtable.findings import Severity

SCRIPTS = sorted((Path(__file__).parent / "correct").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_correct_script_is_not_accused(script: Path, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with on_shared_launcher() as launcher:
        run = rehearse(script, options=LaunchOptions(ranks_per_node=4, ranks="all", launcher=launcher))
    assert run.error is None, run.error
    accusations = [finding for finding in run.findings if finding.severity is not Severity.NOTE]
    assert not [note.text for note in run.trace.notes if note.kind == "observation failed"]
    assert not accusations, "\n".join(map(str, accusations))
