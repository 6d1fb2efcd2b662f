"""Build: compiles the C++ core against the installed torch, once per version of torch and of the sources.

The sources form two translation units, compiled side by side: most of the time goes into torch's headers, which are
then read twice instead of ten times.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from sandtable.errors import BuildError
from sandtable.native import (
    cache_directory,
    cached_library,
    compile_shared,
    compiler,
    forget_library,
    python_headers,
    require_success,
)
from sandtable.vgpu.compatibility import KNOWN_RELEASES, installed_torch, known_releases, release_of, torch_directory
from sandtable.vgpu.preload import DRIVER_LIBRARIES

__all__ = ["core_path"]

_SOURCES = Path(__file__).parent / "csrc"
_UNITS = {
    "device": (
        "recorder",
        "real_values",
        "races",
        "host_races",
        "identity",
        "gradient_scale",
        "gathers",
        "unrecorded",
        "mean_losses",
        "allocator",
        "device",
        "facts",
        "values",
        "fact_rules",
        "exclusions",
        "shapes",
        "routing",
        "operators",
        "kernels",
        "sparse",
        "registration",
    ),
    "python": ("phase", "updates", "returns", "audit_events", "profiler", "nccl", "graphs", "module"),
}
_FLAGS = ("-std=c++20", "-O2", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-w")  # as torch itself
_LIBRARY = "sandtable_core.so"


def core_path(show: Callable[[str], None] | None = None, *, is_unloadable: bool = False) -> Path:
    """Return the path of the core, building it if necessary; `show` takes lines about the progress.

    With `is_unloadable` an intact cached core is built again, because it did not load.
    """
    version = installed_torch()
    if release_of(version) < KNOWN_RELEASES[0]:
        oldest = ".".join(map(str, KNOWN_RELEASES[0]))
        raise BuildError(f"torch must be {oldest} or newer, but {version} is installed; pip install --upgrade torch")
    target = cache_directory() / f"torch-{version}-{_fingerprint(version)}" / _LIBRARY
    libraries = [target, *(target.with_name(name) for name in DRIVER_LIBRARIES)]
    if is_unloadable:
        for library in libraries:
            forget_library(library)
    for library in libraries[1:]:
        cached_library(library, partial(_build_driver, name=library.name))
    try:
        return cached_library(target, lambda path: _build(path, show or _show, version))
    except BuildError as error:
        if release_of(version) in KNOWN_RELEASES:
            raise
        remedy = f"install a release that is known to work ({known_releases()})"
        raise BuildError(f"torch {version} is not among the known releases; {remedy}. {error}") from error


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


def _build_driver(target: Path, *, name: str) -> None:
    compile_shared(target, [_SOURCES / "driver.cpp"], flags=("-O2", "-w", f"-Wl,-soname,{name}"))


def _includes() -> list[str]:
    torch = os.path.join(torch_directory(), "include")
    api = os.path.join(torch, "torch", "csrc", "api", "include")
    return [f"-I{_SOURCES}", f"-I{torch}", f"-I{api}", f"-I{python_headers()}"]


def _show(text: str) -> None:
    """Write progress to standard error: one line that changes on a terminal, else only the last line."""
    if sys.stderr.isatty():
        sys.stderr.write("\r" + text)
    elif text.endswith("\n"):
        sys.stderr.write(text)
    sys.stderr.flush()
