"""Cached libraries are verified: one that is missing, damaged or does not load is built again."""

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from sandtable import native
from sandtable.errors import BuildError

SOURCE = 'extern "C" int answer() { return 42; }\n'
ROOT = Path(__file__).parents[1]


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("SANDTABLE_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "answer.cpp"
    path.write_text(SOURCE)
    return path


def answer(source: Path) -> int:
    library: ctypes.CDLL = native.load_compiled("answer", source, flags=("-O0",))
    return int(library.answer())


def library_of(source: Path) -> Path:
    """The cached library, built in another process: this one must not have it loaded."""
    code = f"from pathlib import Path; from tests.test_native import answer; print(answer(Path({str(source)!r})))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "42\n"
    (path,) = native.cache_directory().rglob("answer.so")
    return path


@pytest.mark.parametrize(
    "content",
    [b"", b"not a library", None],
    ids=["empty", "garbage", "truncated"],
)
def test_a_damaged_library_is_built_again(source, content):
    path = library_of(source)
    intact = path.read_bytes()
    path.write_bytes(intact[: len(intact) // 2] if content is None else content)
    assert answer(source) == 42
    assert path.read_bytes() == intact


def test_a_library_without_a_checksum_is_built_again(source):
    path = library_of(source)
    checksum = path.with_name("answer.so.sha256")
    expected = checksum.read_text()
    checksum.unlink()
    assert answer(source) == 42
    assert checksum.read_text() == expected


def test_a_library_that_matches_its_checksum_but_does_not_load_is_built_again(source):
    path = library_of(source)
    path.write_bytes(b"\x7fELF for another machine")
    path.with_name("answer.so.sha256").write_text(native._checksum(path))
    assert answer(source) == 42


def test_an_intact_library_needs_no_compiler(source, monkeypatch):
    library_of(source)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert answer(source) == 42


def test_processes_that_need_the_same_library_build_it_once(source, tmp_path):
    log = tmp_path / "log"
    slow = tmp_path / "slow-g++"
    slow.write_text(f'#!/bin/sh\necho built >> {log}\nsleep 0.5\nexec {native.compiler()} "$@"\n')
    slow.chmod(0o755)
    code = (
        f"import os; os.environ['CXX'] = {str(slow)!r}\n"
        f"from pathlib import Path; from tests.test_native import answer; print(answer(Path({str(source)!r})))"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    assert [process.communicate(timeout=60)[0] for process in running] == ["42\n"] * 3
    assert log.read_text() == "built\n"


def test_a_cache_that_cannot_be_written_is_named(source, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SANDTABLE_CACHE", str(tmp_path / "file"))
    with pytest.raises(BuildError, match="cache directory must be writable"):
        answer(source)
