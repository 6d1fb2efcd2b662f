"""Native code: compiled on first use with the machine's C++ compiler, and kept.

A workshop with a shelf: who needs a library gives the name under which it would lie there; if it does, it is taken, and
otherwise one builder makes it while others who want the same wait at the door.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sandtable.errors import BuildError

__all__ = ["cache_directory", "compile_shared", "compiler", "require_success", "shelved"]


def cache_directory() -> Path:
    """Where built libraries are kept: SANDTABLE_CACHE, or the user's cache directory."""
    if chosen := os.environ.get("SANDTABLE_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sandtable"


def shelved(target: Path, build: Callable[[Path], None]) -> Path:
    """`target`, after `build(target)` if it is not there yet. Two who want the same wait for each other."""
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _lock(target.parent / "lock"):
        if not target.exists():
            build(target)
    return target


def compile_shared(target: Path, sources: Sequence[Path], *, flags: Sequence[str]) -> None:
    """Compiles and links `sources` into the shared library `target`: all of it or nothing."""
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        scratch = Path(name)
        library, log = scratch / target.name, scratch / "log"
        command = [compiler(), *flags, "-fPIC", "-shared", *map(str, sources), "-o", str(library)]
        with open(log, "w") as file:
            code = subprocess.run(command, stdout=file, stderr=file, check=False).returncode
        require_success(code, log)
        os.replace(library, target)


def require_success(code: int, log: Path) -> None:
    """Raise BuildError with the compiler's own words unless `code` is 0."""
    if code == 0:
        return
    lines = log.read_text(errors="replace").splitlines()
    errors = [line for line in lines if "error" in line] or lines
    raise BuildError("the C++ compiler must accept the core, but it said:\n  " + "\n  ".join(errors[:8]))


def compiler() -> str:
    """The machine's C++ compiler."""
    for name in (os.environ.get("CXX"), "g++", "c++", "clang++"):
        if name and shutil.which(name):
            return name
    raise BuildError(
        "a C++ compiler must be installed, but g++, c++ and clang++ were not found; "
        "apt-get install g++ (or your system's equivalent), or set CXX"
    )


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
