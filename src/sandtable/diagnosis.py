"""Diagnosis: what is installed here, what works, what is missing, and how to get it.

`diagnose()` is what `sandtable doctor` prints. A machine without torch or without a compiler is a result, not an error.
This process does not import torch: the self-test of the virtual GPU does so in processes of its own.
"""

from __future__ import annotations

import importlib.metadata
import platform
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sandtable.engine.clock import load_clock
from sandtable.errors import BuildError, SandtableError
from sandtable.lab import requirements as lab_requirements
from sandtable.native import cache_directory, compiler, python_headers
from sandtable.units import format_bytes, format_seconds
from sandtable.version import __version__
from sandtable.vgpu.compatibility import KNOWN_RELEASES, release_of, torch_directory
from sandtable.vgpu.self_testing import self_test

__all__ = ["Component", "Diagnosis", "diagnose"]

_FRAMEWORKS = ("accelerate", "deepspeed", "lightning", "transformers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One thing that sandtable uses: what was found and, if that is not enough, the remedy."""

    name: str
    found: str
    is_ok: bool = True
    is_optional: bool = False
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """An installation, component by component: the package, what it needs, what works, what is optional."""

    can_rehearse: bool
    components: tuple[Component, ...]


def diagnose() -> Diagnosis:
    """Look for everything that sandtable uses, build the virtual GPU if it is not built yet, and test it."""
    needed = [
        Component(name="sandtable", found=f"{__version__}, Python {platform.python_version()} ({sys.executable})"),
        _examine("torch", _torch),
        _examine("compiler", _compiler_version),
        _examine("headers", lambda: str(python_headers())),
        _examine("cache", _cache),
    ]
    tested = [_examine("virtual GPU", _virtual_gpu), _examine("event clock", _event_clock)]
    optional = [_lab(), Component(name="frameworks", found=_frameworks(), is_optional=True)]
    return Diagnosis(
        can_rehearse=all(component.is_ok for component in tested),
        components=(*needed, *(_without_repetition(component, needed) for component in tested), *optional),
    )


def _examine(name: str, find: Callable[[], str]) -> Component:
    """Return a component as `find` describes it, or with the error it raises, which ends in the remedy."""
    try:
        return Component(name=name, found=find())
    except SandtableError as error:
        return _lacking(name, str(error))
    except Exception as error:  # a diagnosis reports what breaks, whatever it is
        return Component(name=name, found=f"{type(error).__name__}: {error}", is_ok=False)


def _lacking(name: str, message: str, *, is_optional: bool = False) -> Component:
    """Return a component with the two parts of an error message: what is wrong, and the remedy after it."""
    problem, _, remedy = message.rpartition("; ") if "; " in message else (message, "", "")
    return Component(name=name, found=problem, is_ok=False, is_optional=is_optional, remedy=remedy)


def _without_repetition(component: Component, needed: Sequence[Component]) -> Component:
    """Return `component`; if it failed by the same rule as one it needs, with that one's name as the reason."""
    for other in needed:
        if not (component.is_ok or other.is_ok) and _rule(component) == _rule(other):
            return Component(name=component.name, found=f"not tested: see {other.name}", is_ok=False)
    return component


def _rule(component: Component) -> str:
    """Return the rule of an error message: "torch must be installed", without what was found instead."""
    return component.found.partition(", but ")[0]


def _torch() -> str:
    facts = runpy.run_path(str(torch_directory() / "version.py"))
    version = facts["__version__"]
    build = f"CUDA {facts['cuda']}" if facts["cuda"] else "ROCm" if facts.get("hip") else "CPU"
    note = "" if release_of(version) in KNOWN_RELEASES else f", not one of the known releases ({_known_releases()})"
    return f"{version}, {build} build{note}"


def _known_releases() -> str:
    return ", ".join(f"{major}.{minor}" for major, minor in KNOWN_RELEASES)


def _compiler_version() -> str:
    command = [compiler(), "--version"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.partition("\n")[0]


def _cache() -> str:
    directory = cache_directory()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
    except OSError as error:
        raise BuildError(
            f"the cache directory must be writable to build a library, but {error}; set SANDTABLE_CACHE to another"
        ) from error
    size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    return f"{directory}, {format_bytes(size)}"


def _virtual_gpu() -> str:
    outcome = self_test()
    if not outcome.passed:  # the cause may be gone by now; a busy machine is one, because the test has a time limit
        outcome = self_test(again=True)
    if not outcome.passed:
        remedy = "report this line" if outcome.is_known_release else f"install a known release ({_known_releases()})"
        raise BuildError(f"the self-test must pass, but it does not: {outcome.message}; {remedy}")
    return f"built; its self-test passed in {format_seconds(outcome.seconds)}: {outcome.message}"


def _event_clock() -> str:
    load_clock()
    return "built"


def _lab() -> Component:
    if problem := lab_requirements.missing():
        return _lacking("lab", problem, is_optional=True)
    return Component(name="lab", found="ready", is_optional=True)


def _frameworks() -> str:
    versions = {}
    for name in _FRAMEWORKS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(f"{name} {version}" for name, version in versions.items()) or "none"
