"""The core is built once, when it is needed; errors name what is missing."""

import os
from pathlib import Path

import pytest
from tests.vgpu.test_launcher import ROOT, job

from sandtable.errors import BuildError
from sandtable.vgpu import Launcher, build


def test_a_built_core_is_found_again_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    built = build.core_path()
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert build.core_path() == built


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SANDTABLE_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(BuildError, match=r"C\+\+ compiler must be installed.*apt-get install g\+\+"):
        build.core_path()
    assert not list(tmp_path.rglob("*.so"))


def test_a_compiler_that_fails_is_quoted_and_leaves_no_core(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "cxx"
    compiler.write_text("#!/bin/sh\necho 'recorder.h:1: error: no such luck' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("SANDTABLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(BuildError, match="no such luck"):
        build.core_path()
    assert not list(tmp_path.rglob("*.so"))


def test_missing_headers_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SANDTABLE_CACHE", str(tmp_path))
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(BuildError, match=r"has no Python.h; apt-get install python3-dev"):
        build.core_path()


@pytest.mark.parametrize("version", ["2.12.1+cpu", "3.0.0"])
def test_another_torch_is_refused_with_the_one_to_install(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    with pytest.raises(BuildError, match=rf"torch must be 2\.13\.x, but {version.replace('+', '.')} is installed"):
        build.core_path()


def test_a_cuda_build_of_torch_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libtorch_cuda.so").touch()
    monkeypatch.setattr(build, "torch_directory", lambda: str(tmp_path))
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.13.0+cu130")
    with pytest.raises(BuildError, match=r"2\.13\.0\+cu130 is a CUDA build.*torch==2\.13\.0\+cpu"):
        build.core_path()


def test_a_damaged_core_is_built_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SANDTABLE_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "_build", lambda path, show, version: path.write_bytes(b"a core"))
    core = build.core_path()
    for damage in (b"", b"a c", b"garbage"):
        core.write_bytes(damage)
        assert build.core_path().read_bytes() == b"a core"


def test_a_core_that_does_not_load_is_built_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "src")]))
    asked = []

    def core_path(*, is_unloadable: bool = False) -> Path:
        asked.append(is_unloadable)
        return Path("good" if is_unloadable else "unloadable")

    monkeypatch.setattr("sandtable.vgpu.launcher.built_core_path", core_path)
    script = tmp_path / "train.py"
    script.write_text("")
    with Launcher(runtime="tests.vgpu.fake_entry") as launcher:
        launcher.launch(job(str(script), world=1))
    assert asked == [False, True]
