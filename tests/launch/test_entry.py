"""What Python could not run is rejected before anything is started."""

from pathlib import Path

import pytest

from sandtable.errors import LaunchError
from sandtable.launch import require_module, require_script


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with packages: one that runs, one that does not, and one without `__init__.py`."""
    for name in ("runs/__init__.py", "runs/__main__.py", "runs/train.py", "bare/train.py", "still/__init__.py"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("raise SystemError('imported')\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["runs", "runs.train", "bare.train", "json.tool", "torch.distributed.run"])
def test_modules_are_found_without_importing_them(packages: Path, name: str) -> None:
    require_module(name)


@pytest.mark.parametrize("name", ["missing", "runs.missing", "missing.train", "runs.train.x"])
def test_a_module_that_is_not_there_is_named(packages: Path, name: str) -> None:
    with pytest.raises(LaunchError, match=f"'{name}' is not; check the name"):
        require_module(name)


def test_a_package_needs_a_main_module(packages: Path) -> None:
    with pytest.raises(LaunchError, match=r"'still' is a package without one; name a module in it"):
        require_module("still")


def test_modules_are_found_on_the_commands_own_path(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    require_module("runs.train", [str(packages)])


def test_a_script_must_exist_and_a_directory_must_have_a_main_module(packages: Path) -> None:
    require_script("runs")
    with pytest.raises(LaunchError, match=r"'missing.py' does not exist"):
        require_script("missing.py")
    with pytest.raises(LaunchError, match=r"'still' is a directory without __main__.py"):
        require_script("still")
