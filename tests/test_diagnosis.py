"""`sandtable doctor`: ten lines where all is well, and a remedy, never a traceback, for whatever is missing."""

import json
import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sandtable import diagnose

ROOT = Path(__file__).parents[1]
INSTALLED = Path(sysconfig.get_path("purelib"))


@dataclass(frozen=True)
class Outcome:
    """What `sandtable doctor --json` printed, and its exit code."""

    exit_code: int
    can_rehearse: bool
    components: dict[str, dict[str, Any]]


def test_where_all_is_well_ten_lines_say_so() -> None:
    done = doctor()
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len([line for line in lines if "remedy:" not in line]) == 10
    assert [line.split()[1] for line in lines[:3]] == ["sandtable", "torch", "compiler"]
    assert lines[-1] == "a rehearsal can run here"
    assert f"Python {sys.version_info.major}.{sys.version_info.minor}" in lines[0]


def test_without_torch_the_remedy_is_to_install_it(tmp_path: Path) -> None:
    outcome = outcome_of(packages=packages_without_torch(tmp_path))
    assert (outcome.exit_code, outcome.can_rehearse) == (1, False)
    assert outcome.components["torch"]["found"] == "torch must be installed, but it is not"
    assert outcome.components["torch"]["remedy"].startswith("pip install")
    assert outcome.components["virtual GPU"]["found"] == "not tested: see torch"
    assert outcome.components["event clock"]["is_ok"]


def test_torch_that_the_virtual_gpu_cannot_be_built_for_is_a_result(tmp_path: Path) -> None:
    packages = packages_without_torch(tmp_path)
    info = packages / "torch-99.0.0.dist-info"
    for folder in (info, packages / "torch"):
        folder.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 99.0.0\n")
    (packages / "torch" / "__init__.py").touch()
    (packages / "torch" / "version.py").write_text("__version__ = '99.0.0+cu999'\ncuda = '99.9'\n")
    outcome = outcome_of(packages=packages, SANDTABLE_CACHE=str(tmp_path / "cache"))
    assert outcome.exit_code == 1
    assert outcome.components["torch"]["found"].startswith(
        "99.0.0+cu999, CUDA 99.9 build, not one of the known releases"
    )
    assert not outcome.components["virtual GPU"]["is_ok"]
    assert outcome.components["virtual GPU"]["found"]


def test_without_a_compiler_the_remedy_is_to_install_one(tmp_path: Path) -> None:
    outcome = outcome_of(SANDTABLE_CACHE=str(tmp_path), PATH="", CXX="")
    assert (outcome.exit_code, outcome.can_rehearse) == (1, False)
    assert "apt-get install g++" in outcome.components["compiler"]["remedy"]
    assert outcome.components["virtual GPU"]["found"] == "not tested: see compiler"
    assert outcome.components["event clock"]["found"] == "not tested: see compiler"


def test_a_built_virtual_gpu_needs_no_compiler_and_no_programs_of_the_lab() -> None:
    outcome = outcome_of(PATH="", CXX="")
    assert (outcome.exit_code, outcome.can_rehearse) == (0, True)
    assert not outcome.components["compiler"]["is_ok"]
    assert outcome.components["lab"]["is_optional"]
    assert "apt-get install iproute2" in outcome.components["lab"]["remedy"]


def test_a_cache_that_cannot_be_written_is_named() -> None:
    outcome = outcome_of(SANDTABLE_CACHE="/dev/null/cache")
    assert outcome.exit_code == 1
    assert "/dev/null/cache" in outcome.components["cache"]["found"]
    assert "SANDTABLE_CACHE" in outcome.components["cache"]["remedy"]
    assert outcome.components["virtual GPU"]["found"] == "not tested: see cache"


def test_without_headers_the_remedy_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SANDTABLE_CACHE", str(tmp_path))
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    diagnosis = diagnose()
    components = {component.name: component for component in diagnosis.components}
    assert not diagnosis.can_rehearse
    assert f"python{sysconfig.get_python_version()}-dev" in components["headers"].remedy
    assert components["virtual GPU"].found == "not tested: see headers"
    assert components["event clock"].is_ok, "the clock is not a Python extension"


def outcome_of(*, packages: Path = INSTALLED, **variables: str) -> Outcome:
    done = doctor("--json", packages=packages, **variables)
    assert "Traceback" not in done.stderr
    printed = json.loads(done.stdout)
    components = {component["name"]: component for component in printed["components"]}
    return Outcome(exit_code=done.returncode, can_rehearse=printed["can_rehearse"], components=components)


def doctor(*flags: str, packages: Path = INSTALLED, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command with these packages, and no others that are installed."""
    paths = os.pathsep.join([str(ROOT / "src"), str(packages)])
    return subprocess.run(
        [sys.executable, "-S", "-m", "sandtable", "doctor", *flags],
        env={**os.environ, **variables, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )


def packages_without_torch(folder: Path) -> Path:
    """Make a directory with links to every installed package but torch."""
    packages = folder / "packages"
    packages.mkdir()
    for installed in INSTALLED.iterdir():
        if installed.name.partition("-")[0] != "torch":
            (packages / installed.name).symlink_to(installed)
    return packages
