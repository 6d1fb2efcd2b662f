"""Native code: compiled on first use with the machine's C++ compiler, and cached.

A checksum lies beside each cached library. A library that is missing, truncated or damaged is built again, and so is
one that does not load. Processes that need the same library at the same time wait for one of them to build it.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sandtable.errors import BuildError

__all__ = [
    "cache_directory",
    "cached_library",
    "compile_shared",
    "compiler",
    "forget_library",
    "load_compiled",
    "python_headers",
    "require_success",
]


def cache_directory() -> Path:
    """Return the directory of built libraries: SANDTABLE_CACHE, or one in the user's cache directory."""
    if chosen := os.environ.get("SANDTABLE_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sandtable"


def load_compiled(name: str, source: Path, *, flags: Sequence[str]) -> ctypes.CDLL:
    """Load the library compiled from one source file, building it first if necessary."""
    digest = hashlib.sha256(source.read_bytes() + repr(flags).encode()).hexdigest()[:16]
    target = cache_directory() / f"{name}-{digest}" / f"{name}.so"

    def load() -> ctypes.CDLL:
        return ctypes.CDLL(str(cached_library(target, lambda path: compile_shared(path, [source], flags=flags))))

    try:
        return load()
    except OSError:  # intact, but built for another machine
        forget_library(target)
    try:
        return load()
    except OSError as error:
        raise BuildError(f"{target} must load after it was built, but it does not: {error}") from error


def cached_library(target: Path, build: Callable[[Path], None]) -> Path:
    """Return `target`, after building it if it is missing or does not match its checksum.

    `build(path)` writes the library to a path it is given.
    """
    if _is_intact(target):
        return target
    with _lock(target.parent):
        if not _is_intact(target):
            with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
                built, checksum = Path(scratch, target.name), Path(scratch, "checksum")
                build(built)
                checksum.write_text(_checksum(built))
                os.replace(built, target)
                os.replace(checksum, _checksum_path(target))
    return target


def forget_library(target: Path) -> None:
    """Have `cached_library` build this library again."""
    _checksum_path(target).unlink(missing_ok=True)


def compile_shared(target: Path, sources: Sequence[Path], *, flags: Sequence[str]) -> None:
    """Compile and link `sources` into the shared library `target`."""
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        log = Path(scratch, "log")
        command = [compiler(), *flags, "-fPIC", "-shared", *map(str, sources), "-o", str(target)]
        with open(log, "w") as file:
            code = subprocess.run(command, stdout=file, stderr=file, check=False).returncode
        require_success(code, log)


def require_success(code: int, log: Path) -> None:
    """Raise BuildError with the compiler's own messages unless `code` is 0."""
    if code == 0:
        return
    lines = log.read_text(errors="replace").splitlines()
    errors = [line for line in lines if "error" in line] or lines
    raise BuildError("the C++ compiler must accept the core, but it printed:\n  " + "\n  ".join(errors[:8]))


def compiler() -> str:
    """Return the machine's C++ compiler."""
    for name in (os.environ.get("CXX"), "g++", "c++", "clang++"):
        if name and shutil.which(name):
            return name
    raise BuildError(
        "a C++ compiler must be installed, but g++, c++ and clang++ were not found; "
        "apt-get install g++ (or your system's equivalent), or set CXX"
    )


def python_headers() -> Path:
    """Return the directory of Python's C headers."""
    directory = Path(sysconfig.get_path("include"))
    if not (directory / "Python.h").exists():
        raise BuildError(
            f"Python's headers must be installed, but {directory} has no Python.h; "
            f"apt-get install python{sysconfig.get_python_version()}-dev (or your system's equivalent)"
        )
    return directory


def _is_intact(target: Path) -> bool:
    try:
        return _checksum_path(target).read_text() == _checksum(target)
    except (OSError, UnicodeDecodeError):
        return False


def _checksum(library: Path) -> str:
    content = library.read_bytes()
    return f"{hashlib.sha256(content).hexdigest()} {len(content)}\n"


def _checksum_path(target: Path) -> Path:
    return target.with_name(f"{target.name}.sha256")


@contextmanager
def _lock(directory: Path) -> Iterator[None]:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = open(directory / "lock", "w")  # noqa: SIM115 - closed below, by `with`
    except OSError as error:
        raise BuildError(
            f"the cache directory must be writable to build a library, but it is not ({error}); set SANDTABLE_CACHE"
        ) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
