"""The wheel and the sdist: each installs into a new environment, with every file, and rehearses a script from there."""

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from tests.structure.source import modules

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "sandtable"
BUILT_FROM = ("LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "src")
BUILD = "from setuptools import build_meta; build_meta.build_sdist('dist'); build_meta.build_wheel('dist')"
SCRIPT = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64, device="cuda"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build the wheel and the sdist from a copy of the tree, because building leaves files behind."""
    copy = tmp_path_factory.mktemp("tree")
    for name in BUILT_FROM:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(ROOT / name, copy / name)
    run(sys.executable, "-c", BUILD, cwd=copy)
    [wheel], [sdist] = (copy / "dist").glob("*.whl"), (copy / "dist").glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


@pytest.fixture(scope="module", params=["wheel", "sdist"])
def environment(
    request: pytest.FixtureRequest, distributions: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Install a distribution into a new environment that finds its dependencies where this one has them."""
    folder = tmp_path_factory.mktemp(request.param) / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    [packages] = (folder / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = ("install", "--quiet", "--no-index", "--no-build-isolation", "--ignore-installed", "--no-deps")
    run(sys.executable, "-m", "pip", "--python", python, *install, distributions[request.param])
    run(sys.executable, "-m", "pip", "--python", python, "check")
    return folder


def test_the_wheel_has_every_file_of_the_package(distributions: dict[str, Path]) -> None:
    with zipfile.ZipFile(distributions["wheel"]) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == files_of_the_package()


def test_the_sdist_has_every_file_of_the_package_and_what_builds_it(distributions: dict[str, Path]) -> None:
    with tarfile.open(distributions["sdist"]) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in files_of_the_package()} <= packed
    assert {"LICENSE", "README.md", "pyproject.toml"} <= packed
    assert not any(name.startswith("tests") for name in packed)


def test_what_the_package_imports_on_loading_is_declared() -> None:
    """The environments of these tests borrow all packages of this one, and would not notice."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.split(r"[<>=!~ ]", requirement)[0] for requirement in declared}
    imported = {
        name.partition(".")[0]
        for module in modules().values()
        for node in module.tree.body
        for name in imported_names(node)
    }
    with_pydantic = {"pydantic_core"}
    assert imported - names - set(sys.stdlib_module_names) - {"sandtable"} == with_pydantic


def test_an_installed_distribution_rehearses_a_script(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    program = environment / "bin" / "sandtable"
    place = run(environment / "bin" / "python", "-c", "import sandtable; print(sandtable.__file__)", cwd=tmp_path)
    assert Path(place.strip()).is_relative_to(environment)
    assert "doctor" in run(program, "--help", cwd=tmp_path)
    assert "a rehearsal can run" in run(program, "doctor", cwd=tmp_path)
    assert "per step" in run(program, "run", "--nproc-per-node", "2", "--steps", "2", "train.py", cwd=tmp_path)
    assert (tmp_path / "sandtable-out" / "report.html").is_file()


def imported_names(node: ast.stmt) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=str(name), level=0):
            return [name]
    return []


def files_of_the_package() -> set[str]:
    files = (path.relative_to(PACKAGE.parent) for path in PACKAGE.rglob("*") if path.is_file())
    return {str(path) for path in files if "__pycache__" not in path.parts}


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a command without this tree on Python's path, and return what it prints."""
    without_tree = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=without_tree, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done.stdout
