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
    with pytest.raises(BuildError, match=r"has no Python.h; apt-get install python3\.\d+-dev"):
        build.core_path()


def test_an_old_torch_is_refused_with_the_one_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "installed_torch", lambda: "2.11.0+cu128")
    with pytest.raises(BuildError, match=r"torch must be 2\.12 or newer, but 2\.11\.0\+cu128 is installed"):
        build.core_path()


def test_an_unknown_torch_that_does_not_compile_is_named_with_the_known_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SANDTABLE_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "installed_torch", lambda: "2.99.0")
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(BuildError, match=r"torch 2\.99\.0 is not among .* \(2\.12, 2\.13, 2\.14, 2\.15\).*Python\.h"):
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

    def core_path(show: object = None, *, is_unloadable: bool = False) -> Path:
        asked.append(is_unloadable)
        return Path("good" if is_unloadable else "unloadable")

    monkeypatch.setattr("sandtable.vgpu.launcher.built_core_path", core_path)
    script = tmp_path / "train.py"
    script.write_text("")
    with Launcher(runtime="tests.vgpu.fake_entry") as launcher:
        launcher.launch(job(str(script), world=1))
    assert asked == [False, True]
