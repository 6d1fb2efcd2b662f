"""docs/packages.md runs as it is written, and names every package that has a replacement."""

import doctest
from pathlib import Path

import pytest

from sandtable.vgpu.package_names import REPLACED_PACKAGES

PAGE = Path(__file__).parents[1] / "docs" / "packages.md"


def test_the_page_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = doctest.testfile(str(PAGE), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert result.attempted > 5
    assert result.failed == 0


def test_the_table_names_every_replaced_package() -> None:
    text = PAGE.read_text()
    assert [name for name in REPLACED_PACKAGES if name not in ("pynvml", "triton") and f"| {name}" not in text] == []
