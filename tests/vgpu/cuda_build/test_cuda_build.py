"""A CUDA build of another release of torch than the one installed: examples run, and no real card is asked.

The first run makes an environment of about 5 GB in the user's cache directory; later ones find it there. Skipped if pip
reaches no index, or if the disk is full.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.vgpu.virtual import ROOT

from sandtable.native import compile_shared
from sandtable.vgpu.compatibility import installed_torch, release_of

HERE = Path(__file__).parent
NEEDED_BYTES = 12 << 30
COMMAND = "import sys; from sandtable.cli import main; sys.argv[0] = 'sandtable'; main()"

pytestmark = [pytest.mark.slow(minutes=5), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    """bench/environments.py, which makes environments."""
    spec = importlib.util.spec_from_file_location("environments", ROOT / "bench" / "environments.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def build(bench: ModuleType) -> Any:
    """A CUDA build of the newest release that is not the installed one."""
    releases = [release for release in reversed(bench.RELEASES) if tuple(map(int, release.split("."))) != installed()]
    directory = bench.CACHE
    directory.mkdir(parents=True, exist_ok=True)
    for folder in directory.glob("*"):
        found = bench.build_in(folder)
        if found is not None and (found.release, found.kind) == (releases[0], "cuda"):
            return found
    version = bench.newest(bench.versions_of_torch(), releases[0], "cuda")
    if version is None:
        pytest.skip(f"pip finds no CUDA build of torch {releases[0]}: no index is reachable, or it has none")
    if shutil.disk_usage(directory).free < NEEDED_BYTES:
        pytest.skip(f"{directory} must have {NEEDED_BYTES >> 30} GiB free to install a CUDA build of torch")
    pythons = [python for python in reversed(bench.PYTHONS) if bench.runs(python)]
    return bench.make_environment(directory, version, pythons or [sys.executable])


def installed() -> tuple[int, int]:
    return release_of(installed_torch())


def run_script(build: Any, script: Path, *args: str, out: Path, env: Mapping[str, str] | None = None) -> str:
    """Rehearse a script on one rank in this environment; return what was printed."""
    command = [build.python, "-c", COMMAND, "run", "--nproc-per-node", "1", "--out", str(out), str(script), *args]
    return run(command, env)


def run(command: list[str], env: Mapping[str, str] | None = None) -> str:
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **(env or {})}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout + done.stderr


def test_examples_run(bench: ModuleType, build: Any) -> None:
    result = bench.run_worker(build, ("gpt_ddp", "gpt_fsdp2", "gpt_3d"))
    assert result["torch"] == build.version
    assert [row["example"] for row in result["rows"]] == ["gpt_ddp", "gpt_fsdp2", "gpt_3d"]
    assert all(row["step_ms"] > 0 for row in result["rows"])


def test_every_kernel_for_a_card_is_ours(build: Any, tmp_path: Path) -> None:
    run([build.python, str(HERE / "list_kernels.py"), str(tmp_path / "real.json")])
    run_script(build, HERE / "list_kernels.py", str(tmp_path / "virtual.json"), out=tmp_path / "out")
    real, virtual = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("real", "virtual"))
    assert len(real["kernels"]["CUDA"]) > 1000, "a CUDA build has kernels of its own"
    foreign = [
        f"{key} {name}: {place}"
        for key, kernels in virtual["kernels"].items()
        for name, place in kernels.items()
        if not place.split(":")[0].endswith(("vgpu/csrc/registration.cpp", ".py")) and not name.startswith("c10d::")
    ]
    assert not foreign, "kernels that torch's libraries registered are still in place"
    for key, kernels in real["kernels"].items():
        assert kernels.keys() <= virtual["kernels"][key].keys(), f"{key}: an operator is gone"


def test_a_cpu_build_runs_the_same_operators_as_a_card(build: Any, tmp_path: Path) -> None:
    """Where torch has a composite kernel and the card its own, ours must be there by name in every build."""
    run([build.python, str(HERE / "list_kernels.py"), str(tmp_path / "real.json")])
    here = type(build)(version=installed_torch(), python=sys.executable)
    run_script(here, HERE / "list_kernels.py", str(tmp_path / "here.json"), out=tmp_path / "out")
    real, virtual = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("real", "here"))
    in_both = set(real["composites"]) & set(virtual["composites"]) & real["kernels"]["CUDA"].keys()
    assert len(in_both) > 100
    assert in_both <= virtual["kernels"]["CUDA"].keys()


# ---- real cards ----


@pytest.fixture(scope="module")
def witness(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables that put the witness before the driver, and before the C library's open."""
    directory = tmp_path_factory.mktemp("witness")
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        flags = (f'-DDRIVER="{name}"', f"-Wl,-soname,{name}")
        compile_shared(directory / name, [HERE / "witness.cpp"], flags=flags)
    compile_shared(directory / "opens.so", [HERE / "witness.cpp"], flags=("-ldl",))
    return {"LD_LIBRARY_PATH": str(directory), "LD_PRELOAD": str(directory / "opens.so")}


def test_the_witness_sees_who_asks_for_a_card(build: Any, witness: dict[str, str], tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    ask = "import os, torch; torch.cuda.device_count(); os.open('/dev/nvidiactl', 0)"
    subprocess.run([build.python, "-c", ask], env={**os.environ, **witness, "WITNESS": str(seen)}, check=False)
    lines = set(seen.read_text().splitlines())
    assert {"loaded libcuda.so.1", "loaded libnvidia-ml.so.1", "opened /dev/nvidiactl"} <= lines


def test_a_rehearsal_leaves_real_cards_alone(build: Any, witness: dict[str, str], tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    env = {**witness, "WITNESS": str(seen)}
    printed = run_script(build, HERE / "ask_everything.py", out=tmp_path / "out", env=env)
    assert "done" in printed
    assert not seen.exists(), seen.read_text()
