"""`scripts/setup` uses the torch that is present; without one it prefers the CPU build of the pinned release.

It runs unchanged, in a small project with a build backend of its own, and pip finds only the empty wheels made here.
"""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests.empty_wheels import write_wheel

ROOT = Path(__file__).parents[1]
PINNED = re.findall(r"^torch==(.*)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)[0]
PROJECT = """
[build-system]
requires = []
build-backend = "empty_wheels"
backend-path = ["."]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Make a project with our script and constraints, and an index without packages."""
    folder = tmp_path / "project"
    shutil.copytree(ROOT / "scripts", folder / "scripts")
    shutil.copy(ROOT / "constraints.txt", folder)
    (folder / "pyproject.toml").write_text(PROJECT)
    shutil.copy(ROOT / "tests" / "empty_wheels.py", folder)
    (tmp_path / "index").mkdir()
    return folder


@pytest.mark.parametrize(
    ("in_index", "installed"),
    [((PINNED, f"{PINNED}+cpu", f"{PINNED}+cu130", "99.0"), f"{PINNED}+cpu"), ((PINNED, "99.0"), PINNED)],
    ids=["index with a CPU build", "index without"],
)
def test_without_torch_the_pinned_release_is_installed(
    project: Path, in_index: tuple[str, ...], installed: str
) -> None:
    for version in in_index:
        write_wheel(project.parent / "index", "torch", version)
    message = set_up(project, python=sys.executable, SANDTABLE_TORCH="pinned")
    assert torch_of(project) == (installed, project / ".venv")
    assert ("may be several GB" in message) == (installed == PINNED)
    assert set_up(project, python=sys.executable) == "", "a second setup does nothing"


def test_torch_of_the_active_environment_is_used_and_stays_there(project: Path) -> None:
    environment = environment_with_torch(project.parent / "mine", "2.14.1+cu130")
    assert "using torch 2.14.1+cu130" in set_up(project, python=environment / "bin" / "python")
    assert torch_of(project) == ("2.14.1+cu130", environment)
    assert "torch==2.14.1+cu130" in (project / ".venv" / "sandtable-constraints.txt").read_text()


def test_torch_that_is_too_old_is_left_alone(project: Path) -> None:
    write_wheel(project.parent / "index", "torch", PINNED)
    environment = environment_with_torch(project.parent / "mine", "2.9.0")
    assert "torch 2.9.0" in set_up(project, python=environment / "bin" / "python")
    assert torch_of(project) == (PINNED, project / ".venv")


def set_up(project: Path, *, python: str | Path, **variables: str) -> str:
    """Run `scripts/setup` and return what it says."""
    inherited = {name: value for name, value in os.environ.items() if name != "SANDTABLE_TORCH"}
    index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(project.parent / "index"), "PIP_CONFIG_FILE": os.devnull}
    done = subprocess.run(
        [project / "scripts" / "setup"],
        env={**inherited, **index, **variables, "PYTHON": str(python)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def torch_of(project: Path) -> tuple[str, Path]:
    """Return the version of the torch that .venv sees, and the environment it is in."""
    code = "from importlib.metadata import distribution as d; t = d('torch'); print(t.version, t.locate_file(''))"
    command = [str(project / ".venv" / "bin" / "python"), "-c", code]
    version, place = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return version, Path(place).parents[2]


def environment_with_torch(folder: Path, version: str) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    [packages] = (folder / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(write_wheel(folder, "torch", version)) as wheel:
        wheel.extractall(packages)
    return folder
