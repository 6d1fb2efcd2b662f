"""docs/api.md runs as it is written, from the directory a reader would be in."""

import doctest
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_the_page_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    flags = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
    result = doctest.testfile(str(ROOT / "docs" / "api.md"), module_relative=False, optionflags=flags)
    assert result.attempted > 20
    assert result.failed == 0
