"""Build: compiles the C++ core against the installed torch, once per version of torch and of the sources.

The sources form two translation units, compiled side by side: most of the time goes into torch's headers, which are
then read twice instead of ten times.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sandtable.errors import BuildError
from sandtable.native import cache_directory, cached_library, compiler, forget_library, require_success
from sandtable.vgpu.preload import torch_directory

__all__ = ["core_path"]

_SOURCES = Path(__file__).parent / "csrc"
_UNITS = {
    "device": ("recorder", "allocator", "device", "values", "shapes", "operators", "kernels", "sparse"),
    "python": ("phase", "profiler", "nccl", "module"),
}
_FLAGS = ("-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-w")
_LIBRARY = "sandtable_core.so"
_SUPPORTED_TORCH = "2.13"


def core_path(show: Callable[[str], None] | None = None, *, is_unloadable: bool = False) -> Path:
    """Return the path of the core, building it if necessary; `show` takes lines about the progress.

    With `is_unloadable` an intact cached core is built again, because it did not load.
    """
    version = _torch_version()
    target = cache_directory() / f"torch-{version}-{_fingerprint(version)}" / _LIBRARY
    if is_unloadable:
        forget_library(target)
    return cached_library(target, lambda path: _build(path, show or _show, version))


def _torch_version() -> str:
    directory = Path(torch_directory())
    version = importlib.metadata.version("torch")
    if not version.startswith(f"{_SUPPORTED_TORCH}."):
        raise BuildError(
            f"torch must be {_SUPPORTED_TORCH}.x, but {version} is installed; "
            "pip install -c constraints.txt torch (constraints.txt is in the repository)"
        )
    if (directory / "lib" / "libtorch_cuda.so").exists():
        raise BuildError(
            f"a rehearsal needs the CPU build of torch, but {version} is a CUDA build, whose kernels stand where the "
            f"virtual GPU's go; make a virtual environment with torch=={version.split('+')[0]}+cpu for sandtable"
        )
    return version


def _fingerprint(torch_version: str) -> str:
    digest = hashlib.sha256(f"{torch_version} {sys.implementation.cache_tag} {_FLAGS} {_UNITS}".encode())
    for source in sorted(_SOURCES.iterdir()):
        digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()[:16]


def _build(target: Path, show: Callable[[str], None], version: str) -> None:
    command_name = compiler()
    includes = _includes()
    start = time.monotonic()
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        scratch = Path(name)
        running: dict[str, subprocess.Popen[bytes]] = {}
        for unit, parts in _UNITS.items():
            source = scratch / f"unit_{unit}.cpp"
            source.write_text("".join(f'#include "{part}.cpp"\n' for part in parts))
            command = [command_name, *_FLAGS, *includes, "-c", str(source), "-o", str(scratch / f"{unit}.o")]
            with open(scratch / f"{unit}.log", "w") as log:
                running[unit] = subprocess.Popen(command, stderr=log, stdout=log)
        while any(process.poll() is None for process in running.values()):
            show(f"building the virtual GPU for torch {version}, once: {time.monotonic() - start:.0f} s")
            time.sleep(0.5)
        for unit, process in running.items():
            require_success(process.returncode, scratch / f"{unit}.log")
        lib = os.path.join(torch_directory(), "lib")
        objects = [str(scratch / f"{unit}.o") for unit in _UNITS]
        linked = [f"-l{name}" for name in ("torch_python", "torch", "torch_cpu", "c10")]
        link = [command_name, "-shared", "-o", str(target), *objects, f"-L{lib}", *linked, f"-Wl,-rpath,{lib}"]
        with open(scratch / "link.log", "w+") as log:
            code = subprocess.run(link, stderr=log, stdout=log, check=False).returncode
        require_success(code, scratch / "link.log")
    show(f"built the virtual GPU for torch {version} in {time.monotonic() - start:.0f} s\n")


def _includes() -> list[str]:
    python = sysconfig.get_path("include")
    if not os.path.exists(os.path.join(python, "Python.h")):
        raise BuildError(
            f"Python's headers must be installed, but {python} has no Python.h; "
            "apt-get install python3-dev (or your system's equivalent)"
        )
    torch = os.path.join(torch_directory(), "include")
    api = os.path.join(torch, "torch", "csrc", "api", "include")
    return [f"-I{_SOURCES}", f"-I{torch}", f"-I{api}", f"-I{python}"]


def _show(text: str) -> None:
    end = "" if sys.stderr.isatty() and not text.endswith("\n") else "\n"
    if end and not text.endswith("\n"):
        return  # not a terminal: only the last line
    sys.stderr.write("\r" + text if sys.stderr.isatty() else text)
    sys.stderr.flush()
